"""Folders in FLamby's layouts are read as its own code reads them, and refused with a remedy."""

import shutil
import sys

import nibabel
import numpy as np
import pytest
from flamby_folders import SUBJECTS, brain, isic_lines, write_isic, write_ixi
from PIL import Image

from client_app import prepared_data
from client_app.simulated_sites import simulated_federation
from client_app.site_config import SiteConfig
from common.config import load
from common.data import flamby
from common.data.data_folder import DataFolder
from common.data.datasets import load_site_file
from common.errors import DataError


class TestIsic:
    def test_images_are_cut_to_their_middle_in_the_order_of_the_table(self, tmp_path):
        folder = write_isic(tmp_path, isic_lines())
        rows = flamby.isic2019(DataFolder(tmp_path, download=False))
        assert rows.x.shape == (24, 3, 200, 200)
        for row in (0, 17):
            name = isic_lines()[row][0]
            with Image.open(
                folder / "ISIC_2019_Training_Input_preprocessed" / f"{name}.jpg"
            ) as image:
                middle = np.asarray(image)[5:205, 12:212]
            np.testing.assert_array_equal(rows.x[row], np.moveaxis(middle, 2, 0))

    def test_classes_centres_and_split_are_the_tables(self, tmp_path):
        write_isic(tmp_path, isic_lines())
        rows = flamby.isic2019(DataFolder(tmp_path, download=False))
        assert rows.class_names == ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
        assert rows.y.tolist() == [line[1] for line in isic_lines()]
        assert rows.owner.tolist() == [line[2] for line in isic_lines()]
        assert rows.owner_names[0] == "bcn"
        assert rows.owner_names[4] == "msk"
        assert rows.test.tolist() == [False, False, False, True] * 6

    def test_only_the_centres_that_are_there_are_sites(self, tmp_path):
        write_isic(tmp_path, [line for line in isic_lines() if line[2] in (1, 4)])
        rows = flamby.isic2019(DataFolder(tmp_path, download=False))
        assert rows.owner_names == ("ham-vidir-molemax", "msk")
        assert rows.owner.tolist() == [0] * 4 + [1] * 4

    def test_a_federation_is_split_by_centre(self, tmp_path):
        write_isic(tmp_path, isic_lines())
        dataset, sites = simulated_federation(
            load(None, ["dataset=isic2019", f"data-dir={tmp_path}"])
        )
        assert [site.name for site in sites] == list(flamby.ISIC_CENTRES)
        assert [(len(site.train), len(site.test)) for site in sites] == [(3, 1)] * 6
        assert dataset.inputs.shape == (3, 200, 200)
        np.testing.assert_allclose(dataset.train.x.mean(axis=(0, 2, 3)), 0, atol=1e-4)

    def test_a_centre_of_its_own_reads_its_folder(self, tmp_path):
        folder = write_isic(tmp_path, isic_lines()[:4])
        dataset = load_site_file(folder, name="isic2019", site="bcn")
        assert len(dataset.train_strata) == 3
        assert len(dataset.test_strata) == 1
        assert dataset.num_classes == 8

    @pytest.mark.parametrize(
        ("old", "new", "said"),
        [
            ("image,", "picture,", "no column 'image'; it has picture, MEL"),
            (",center,", ",centre,", "no column 'center'"),
            (",3,0,test", ",8,0,test", "line 5 has target '8'; known: 0, 1,"),
            (",5,test", ",6,test", "line 25 has center '6'"),
            (",train,train_2", ",trian,train_2", "fold 'trian'; did you mean 'train'"),
            ("ISIC_100,", ",", "column 'image' is empty on line 6"),
            ("ISIC_100,", "ISIC_900,", r"no file .*ISIC_900.jpg, which train_test_split lists"),
            ("\nISIC_101", '\n"ISIC_101', "cannot be read"),
        ],
    )
    def test_a_broken_table_is_named_with_its_line(self, tmp_path, old, new, said):
        folder = write_isic(tmp_path, isic_lines())
        text = (folder / "train_test_split").read_text()
        assert old in text
        (folder / "train_test_split").write_text(text.replace(old, new, 1))
        with pytest.raises(DataError, match=said):
            flamby.isic2019(DataFolder(tmp_path, download=False))

    def test_a_table_without_rows_is_refused(self, tmp_path):
        write_isic(tmp_path, [])
        with pytest.raises(DataError, match="needs a header line and at least one row"):
            flamby.isic2019(DataFolder(tmp_path, download=False))

    def test_images_that_were_not_resized_are_named(self, tmp_path):
        write_isic(tmp_path, isic_lines()[:1], size=(150, 224))
        with pytest.raises(DataError, match=r"ISIC_000.jpg is 224x150 .*: run it"):
            flamby.isic2019(DataFolder(tmp_path, download=False))

    def test_a_damaged_image_is_named(self, tmp_path):
        folder = write_isic(tmp_path, isic_lines()[:2])
        image = folder / "ISIC_2019_Training_Input_preprocessed" / "ISIC_001.jpg"
        image.write_bytes(image.read_bytes()[:500])
        with pytest.raises(DataError, match=r"ISIC_001.jpg cannot be read as an image"):
            flamby.isic2019(DataFolder(tmp_path, download=False))


def read_ixi(root):
    return flamby.ixi_tiny(DataFolder(root, download=False))


FEW = {"Guys": [2, 5, 7, 11, 12, 13], "IOP": [35, 36]}


class TestIxi:
    def test_volumes_masks_centres_and_split(self, tmp_path):
        write_ixi(tmp_path, FEW)
        rows = read_ixi(tmp_path)
        assert rows.x.shape == (8, 1, 48, 60, 48)
        assert rows.y.shape == (8, 48, 60, 48)
        assert rows.class_names == ("brain",)
        assert not rows.strata.any()
        assert rows.owner_names == ("guys", "iop")
        assert rows.owner.tolist() == [0] * 6 + [1] * 2
        assert rows.test.tolist() == [False] * 4 + [True] + [False] * 3
        np.testing.assert_allclose(rows.x.mean(axis=(1, 2, 3, 4)), 0, atol=1e-4)
        np.testing.assert_allclose(rows.x.std(axis=(1, 2, 3, 4)), 1, atol=1e-4)
        # the ball is 300 to 400 brighter than what lies around it, and stays where it is
        for row, number in enumerate([*FEW["Guys"], *FEW["IOP"]]):
            inside, outside = (rows.x[row, 0][m].mean() for m in (rows.y[row], ~rows.y[row]))
            assert inside > outside + 1
            assert rows.y[row].mean() == pytest.approx(brain(number)[1].mean(), abs=0.02)

    def test_a_volume_of_that_shape_is_kept_voxel_by_voxel(self, tmp_path, monkeypatch):
        monkeypatch.setattr(flamby, "IXI_SHAPE", (20, 16, 18))
        write_ixi(tmp_path, {"HH": [13]})
        rows = read_ixi(tmp_path)
        volume, mask = brain(13)
        np.testing.assert_allclose(rows.x[0, 0], (volume - volume.mean()) / volume.std(), atol=1e-4)
        np.testing.assert_array_equal(rows.y[0], mask == 1)

    def test_a_federation_is_split_by_hospital(self, tmp_path, monkeypatch):
        monkeypatch.setattr(flamby, "IXI_SHAPE", (6, 8, 6))
        write_ixi(tmp_path)
        dataset, sites = simulated_federation(
            load(None, ["dataset=ixi-tiny", f"data-dir={tmp_path}"])
        )
        assert [site.name for site in sites] == ["guys", "hh", "iop"]
        assert [len(site.train) + len(site.test) for site in sites] == [
            *map(len, SUBJECTS.values())
        ]
        assert dataset.train_targets is dataset.train.y
        assert dataset.test_targets.shape == (4, 6, 8, 6)

    def test_a_hospital_of_its_own_keeps_its_masks_prepared(self, tmp_path, monkeypatch):
        monkeypatch.setattr(flamby, "IXI_SHAPE", (6, 8, 6))
        write_ixi(tmp_path, {"Guys": FEW["Guys"]})
        config = SiteConfig.parse(
            {
                "site": "guys",
                "dataset": "ixi-tiny",
                "data-path": str(tmp_path / "IXITiny"),
                "state-dir": str(tmp_path / "state"),
            }
        )
        made, opened = prepared_data.prepare(config), prepared_data.open_dataset(config)
        assert made.train.y.shape == (5, 6, 8, 6)
        assert np.array_equal(made.train.y, opened.train.y)
        assert np.array_equal(made.test.y, opened.test.y)

    def test_without_nibabel_the_extra_is_named(self, tmp_path, monkeypatch):
        write_ixi(tmp_path, {"HH": [13]})
        monkeypatch.setitem(sys.modules, "nibabel", None)
        with pytest.raises(DataError, match=r"pip install 'coterie\[medical\]'"):
            read_ixi(tmp_path)

    @pytest.mark.parametrize(
        ("old", "new", "said"),
        [
            ("Patient ID", "Patient", "no column 'Patient ID'"),
            ("13,0,train", "14,0,train", "no line for IXI013-HH-0813; add its Patient ID"),
            (",train", ",validation", "Split 'validation'"),
        ],
    )
    def test_a_broken_table_is_named(self, tmp_path, old, new, said):
        write_ixi(tmp_path, {"HH": [13]})
        table = tmp_path / "IXITiny" / "metadata_tiny.csv"
        assert old in table.read_text()
        table.write_text(table.read_text().replace(old, new))
        with pytest.raises(DataError, match=said):
            read_ixi(tmp_path)

    @pytest.mark.parametrize(
        ("break_it", "said"),
        [
            (lambda s: (s / "T1" / f"{s.name}_image.nii.gz").unlink(), "T1 holds 0 .nii.gz files"),
            (lambda s: (s / "label" / "other.nii.gz").touch(), "label holds 2 .nii.gz files"),
            (lambda s: shutil.rmtree(s / "label"), "label holds 0 .nii.gz files"),
            (lambda s: cut(s / "T1" / f"{s.name}_image.nii.gz"), r"image.nii.gz cannot be read"),
            (lambda s: (s.parent / "IXI9-HH-1").mkdir(), "IXI9-HH-1 is no subject as IXI002-Guys"),
            (lambda s: shutil.rmtree(s), "IXI_sample holds no subject"),
            (lambda s: shutil.rmtree(s.parent), "there is no folder .*IXI_sample"),
            (lambda s: write_nifti(s, np.zeros((3, 3))), r"shape \(3, 3\); it must be three axes"),
            (lambda s: write_nifti(s, np.full((3, 3, 3), np.nan)), "three axes of finite numbers"),
        ],
    )
    def test_broken_folders_are_named_with_what_to_do(self, tmp_path, break_it, said):
        folder = write_ixi(tmp_path, {"HH": [13]})
        break_it(folder / "IXI013-HH-0813")
        with pytest.raises(DataError, match=said):
            read_ixi(tmp_path)


def cut(file):
    file.write_bytes(file.read_bytes()[:300])


def write_nifti(subject, values):
    image = nibabel.nifti1.Nifti1Image(values.astype(np.float32), np.eye(4))
    nibabel.save(image, subject / "T1" / f"{subject.name}_image.nii.gz")

"""Folders in FLamby's layouts are read as its own code reads them, and refused with a remedy."""

import numpy as np
import pytest
from flamby_folders import isic_lines, write_isic
from PIL import Image

from client_app.site import simulated_federation
from common import flamby
from common.config import load
from common.data import load_site_file
from common.errors import DataError
from common.readers import DataFolder


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
        assert dataset.input_shape == (3, 200, 200)
        np.testing.assert_allclose(dataset.train_x.mean(axis=(0, 2, 3)), 0, atol=1e-4)

    def test_a_centre_of_its_own_reads_its_folder(self, tmp_path):
        folder = write_isic(tmp_path, isic_lines()[:4])
        dataset = load_site_file(folder, name="isic2019", site="bcn")
        assert len(dataset.train_y) == 3
        assert len(dataset.test_y) == 1
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

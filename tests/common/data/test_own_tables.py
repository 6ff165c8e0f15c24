"""A user's own tables without a schema: what is read, and what each mistake is told."""

import numpy as np
import pandas as pd
import pytest

from common.data.own_tables import read_table
from common.errors import DataError

CSV = "age,ward,sick,weight\n61,b,yes,70.5\n\n34,a,no, 60\n50,b,no,1e2\n"


def csv_rows(tmp_path, text, label="sick", client="ward"):
    path = tmp_path / "own.csv"
    path.write_text(text, encoding="utf-8")
    return read_table(path, label, client)


class TestCsv:
    def test_features_are_the_other_columns(self, tmp_path):
        rows = csv_rows(tmp_path, CSV)
        assert rows.x.tolist() == [[61, 70.5], [34, 60], [50, 100]]
        assert rows.class_names == ("no", "yes")
        assert rows.y.tolist() == [1, 0, 0]
        assert rows.owner_names == ("a", "b")
        assert rows.owner.tolist() == [1, 0, 1]

    def test_a_byte_order_mark_is_not_part_of_the_first_name(self, tmp_path):
        rows = csv_rows(tmp_path, "\ufeffsick,a\n1,2\n0,3\n", client="")
        assert rows.x.tolist() == [[2], [3]]
        assert rows.owner is None

    def test_whole_number_labels_sort_as_numbers(self, tmp_path):
        rows = csv_rows(tmp_path, "a,sick\n1,10\n2,9\n3,-1\n", client="")
        assert rows.class_names == ("-1", "9", "10")

    def test_labels_too_large_for_int64_are_texts(self, tmp_path):
        rows = csv_rows(tmp_path, "a,sick\n1,100000000000000000000\n2,9\n", client="")
        assert rows.class_names == ("100000000000000000000", "9")

    @pytest.mark.parametrize("cell", ["nan", "NA", "?", "-"])
    def test_a_missing_label_is_no_class(self, tmp_path, cell):
        text = CSV.replace("no, 60", f"{cell}, 60")
        with pytest.raises(
            DataError, match=r"'sick' holds .* on line 4, a missing value.*data check"
        ):
            csv_rows(tmp_path, text)

    def test_an_underscore_is_in_no_number(self, tmp_path):
        with pytest.raises(DataError, match="'age' holds '3_4' on line 4, not a number"):
            csv_rows(tmp_path, CSV.replace("34", "3_4"))

    def test_more_than_50_values_are_no_classes(self, tmp_path):
        text = "a,sick\n" + "\n".join(f"{n},{n / 4}" for n in range(51))
        with pytest.raises(
            DataError, match=r"'sick' holds 51 values .*more than 50 are no classes"
        ):
            csv_rows(tmp_path, text, client="")

    def test_every_kind_of_table_is_read_alike(self, tmp_path):
        expected = csv_rows(tmp_path, CSV)
        frame = pd.read_csv(tmp_path / "own.csv")
        frame.to_parquet(tmp_path / "own.parquet")
        frame.to_csv(tmp_path / "own.tsv.gz", sep="\t", index=False)
        for name in ("own.parquet", "own.tsv.gz"):
            rows = read_table(tmp_path / name, "sick", "ward")
            np.testing.assert_array_equal(rows.x, expected.x)
            assert (rows.columns, rows.class_names) == (expected.columns, expected.class_names)
            np.testing.assert_array_equal(rows.y, expected.y)
            np.testing.assert_array_equal(rows.owner, expected.owner)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (CSV.replace("34", "old"), "column 'age' holds 'old' on line 4, not a number"),
            (CSV.replace("34", ""), "column 'age' holds '' on line 4"),
            (CSV.replace("70.5", "nan"), "column 'weight' holds 'nan' on line 2"),
            (CSV.replace("no, 60", ", 60"), "column 'sick' holds '' on line 4"),
            (CSV.replace("34,a", "34,"), "column 'ward' holds '' on line 4"),
            (CSV.replace(",1e2", ""), "line 5 has 3 values, the header 4"),
            (
                CSV.replace("sick", "sik"),
                "label-column=sick .* mean 'sik'",
            ),
            (CSV.replace("ward", "bed"), "client-column=ward is no column of own.csv"),
            (CSV.replace("age", "ward"), "names a column twice"),
            ("age,ward,sick,weight\n", "no row follows the header"),
            ("", "it is empty"),
            ("ward,sick\na,1\n", "no feature columns"),
            ('age,ward,sick,weight\n"61,b,yes,1\n', "cannot be read"),
        ],
    )
    def test_mistakes_are_named_with_column_and_line(self, tmp_path, text, message):
        with pytest.raises(DataError, match=message):
            csv_rows(tmp_path, text)

"""Kinds of what is read wrong, wherever in a table they stand: in CSV and parquet, a line each.

Every case is a file, or two sites' files, as people who keep registries write them. What is read by
the proposed schema is held to the truth that the case was made of.
"""

import unicodedata

import numpy as np
import pandas as pd
import pytest

from common.data.own_tables import read_table
from common.errors import DataError
from common.tables.checking import check_files
from common.tables.decoding import decoded
from common.tables.reading import read_raw, site_of
from common.tables.table_schema import TableSchema

ROWS = 60
EVERY_SEVENTH = np.arange(ROWS) % 7 == 0


def frame(seed=0, **columns):
    rng = np.random.default_rng(seed)
    age = rng.integers(20, 90, ROWS)
    label = np.where(rng.random(ROWS) < 0.5, "yes", "no")
    return pd.DataFrame(
        {"age": age, "bmi": rng.normal(26, 4, ROWS).round(1), "label": label}
    ).assign(**columns)


@pytest.fixture(params=["csv", "parquet"])
def written(tmp_path, request):
    def write(name, table):
        path = tmp_path / f"{name}.{request.param}"
        if request.param == "csv":
            table.to_csv(path, index=False)
        else:
            table.to_parquet(path, index=False)
        return path

    return write


def lines(checked, column):
    """Return what is said of a column, by its kind; guesses, too."""
    return {
        said.kind: said.says
        for said in (*checked.problems, *checked.guesses)
        if said.column == column
    }


def in_file(checked, kind):
    return {
        (p.file.rpartition("/")[2].partition(".")[0], p.column)
        for p in checked.problems
        if p.kind == kind
    }


def feature(checked, path, name):
    schema = checked.proposal.complete()
    table = decoded(read_raw(path), schema, schema.writing_of(site_of(path)))
    return table.features[:, [column.name for column in schema.features].index(name)]


# One meaning, two ways to write it ----------------------------------------------------------------


@pytest.mark.parametrize("first", [(0, 1), (0, 1, 2, 3), (-1, 0)])
def test_codes_that_begin_elsewhere_at_a_site_have_a_line(written, first):
    codes = np.arange(ROWS) % len(first)
    files = [written(name, frame(n, code=codes + first[0])) for n, name in enumerate("ab")]
    files.append(written("c", frame(2, code=codes + first[0] + 1)))
    checked = check_files(files)
    assert in_file(checked, "coding") == {("c", "code")}
    assert f"'{first[1]}'" in lines(checked, "code")["coding"]


def test_codes_of_which_a_site_lacks_some_and_counts_have_none(written):
    stage = np.arange(ROWS) % 4
    files = [written("a", frame(stage=stage)), written("b", frame(1, stage=stage.clip(0, 2)))]
    assert not in_file(check_files(files), "coding")


def test_words_of_two_languages_have_a_line_and_those_of_booleans_are_one(written):
    sex, smoker = np.arange(ROWS) % 2, np.arange(ROWS) % 3 == 0
    north = frame(sex=np.array(["female", "male"])[sex], smoker=np.where(smoker, "TRUE", "FALSE"))
    south = frame(
        1, sex=np.array(["weiblich", "männlich"])[sex], smoker=np.where(smoker, "WAHR", "FALSCH")
    )
    files = [written("north", north), written("south", south)]
    checked = check_files(files)
    assert in_file(checked, "coding") == {("south", "sex")}
    for file in files:
        np.testing.assert_array_equal(feature(checked, file, "smoker"), smoker)


def test_only_the_file_of_another_unit_is_blamed(written):
    rng = np.random.default_rng(1)
    glucose = rng.normal(100, 20, ROWS).round()
    files = [
        written("a", frame(glucose=glucose)),
        written("b", frame(1, glucose=(glucose / 18).round(1))),
        written("c", frame(2, glucose=glucose[::-1] + 1)),
    ]
    assert in_file(check_files(files), "unit") == {("b", "glucose")}


@pytest.mark.parametrize("kind", ["label", "time", "weight"])
def test_units_of_labels_times_and_weights_have_a_line_too(written, kind):
    values = np.random.default_rng(2).normal(140, 15, ROWS).round(1)
    name = {"label": "label", "time": "days", "weight": "sample_weight"}[kind]
    files = [
        written("a", frame(**{name: values})),
        written("b", frame(1, **{name: (values / 30).round(2)})),
    ]
    checked = check_files(files, "label", "days" if kind == "time" else "")
    assert in_file(checked, "unit") == {("b", name)}


def test_a_unit_that_some_cells_lack_is_said_with_how_many(tmp_path):
    shares = [f"{n % 90}%" if n % 3 else f"{n % 90 / 100}" for n in range(ROWS)]
    frame(share=shares).to_csv(tmp_path / "own.csv", index=False)
    assert "in all but 20 rows" in lines(check_files([tmp_path / "own.csv"]), "share")["unit"]


# What stands for none -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("day", "kind"),
    [("9999-12-31", "sentinel"), ("0001-01-01", "sentinel"), ("1900-01-01", "sentinel")],
)
@pytest.mark.parametrize("dates", ["%Y-%m-%d", "%d.%m.%Y"])
def test_days_that_stand_for_none_are_said_and_missing_however_sites_write(
    written, day, kind, dates
):
    truth = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(ROWS) * 11, "D")
    year, month, number = day.split("-")
    none = dates.replace("%Y", year).replace("%m", month).replace("%d", number)
    texts = np.where(EVERY_SEVENTH, none, truth.strftime(dates))
    files = [
        written("a", frame(seen=texts)),
        written("b", frame(1, seen=truth.strftime("%Y-%m-%d"))),
    ]
    once = frame(2, seen=truth.strftime("%Y-%m-%d"))
    once.loc[3, "seen"] = day  # in one row nothing says it, but for what all sites agree on
    files.append(written("c", once))
    checked = check_files(files)
    assert kind in lines(checked, "seen")
    wanted = (truth - pd.Timestamp(0)).days.to_numpy(float)
    np.testing.assert_array_equal(
        feature(checked, files[0], "seen"), np.where(EVERY_SEVENTH, np.nan, wanted)
    )
    np.testing.assert_array_equal(feature(checked, files[1], "seen"), wanted)
    assert np.flatnonzero(np.isnan(feature(checked, files[2], "seen"))).tolist() == [3]


def test_a_typed_day_that_stands_for_none_is_missing(tmp_path):
    days = [pd.Timestamp("2020-01-01") + pd.Timedelta(days=11 * n) for n in range(ROWS)]
    typed = [
        (pd.Timestamp("1900-01-01") if odd else day).to_pydatetime()
        for day, odd in zip(days, EVERY_SEVENTH, strict=True)
    ]
    frame(seen=typed).to_parquet(tmp_path / "own.parquet", index=False)
    checked = check_files([tmp_path / "own.parquet"])
    found = feature(checked, tmp_path / "own.parquet", "seen")
    np.testing.assert_array_equal(np.isnan(found), EVERY_SEVENTH)
    births = pd.date_range("1901-01-01", "2000-12-31", ROWS).to_pydatetime()
    typed = np.where(EVERY_SEVENTH, pd.Timestamp("1900-01-01").to_pydatetime(), births)
    frame(born=typed).to_parquet(tmp_path / "own.parquet", index=False)
    checked = check_files([tmp_path / "own.parquet"])
    assert "read as the others are" in lines(checked, "born")["sentinel"]
    assert not np.isnan(feature(checked, tmp_path / "own.parquet", "born")).any()


@pytest.mark.parametrize(
    ("none", "values"),
    [
        (-1, np.arange(ROWS) % 50 + 20),
        (-1, np.arange(ROWS) % 2),
        (9, np.arange(ROWS) % 3 + 1),
        (9, np.arange(ROWS) % 2),
        (99.9, np.arange(ROWS) % 40 / 10 + 3),
        (1e10, np.arange(ROWS) % 50 + 20),
    ],
)
def test_a_number_that_may_stand_for_none_is_read_and_has_a_line(written, none, values):
    values = np.where(EVERY_SEVENTH, none, values)
    path = written("own", frame(x=values))
    checked = check_files([path])
    assert "read as the others are" in lines(checked, "x")["sentinel"]
    np.testing.assert_array_equal(feature(checked, path, "x"), values)


@pytest.mark.parametrize(
    "values", [[-1, 1], [-2, -1, 0, 1], [0, 1, 2, 7, 8, 9, 10], [*range(10)], [-1.0, 1.5, 2.5]]
)
def test_codes_and_measures_without_a_gap_have_no_such_line(written, values):
    path = written("own", frame(x=np.array(values)[np.arange(ROWS) % len(values)]))
    said = lines(check_files([path]), "x")
    assert ("sentinel" in said) == (values == [-1.0, 1.5, 2.5])


@pytest.mark.parametrize(
    ("none", "classes"), [(9, [0, 1]), ("unknown", ["no", "yes"]), ("Keine Angabe", ["nein", "ja"])]
)
def test_a_class_that_may_stand_for_none_has_a_line_with_a_schema_and_without(
    written, none, classes
):
    label = np.where(EVERY_SEVENTH, none, np.array(classes)[np.arange(ROWS) % 2])
    path = written("own", frame(label=label))
    assert "a class of its own" in lines(check_files([path]), "label")["sentinel"]
    assert ("label", "sentinel") in {(g.column, g.kind) for g in read_table(path, "label").guesses}


@pytest.mark.parametrize("none", [9999, -1, "unknown"])
def test_rows_of_nobody_known_have_a_line(written, none):
    people = np.arange(ROWS) // 2 + 100
    ids = people if not isinstance(none, str) else np.array([f"P{each}" for each in people])
    path = written("own", frame(patient_id=np.where(EVERY_SEVENTH, none, ids)))
    checked = check_files([path])
    assert f"'{none}' in 9 of 60 rows" in lines(checked, "patient_id")["sentinel"]


@pytest.mark.parametrize(("name", "time"), [("sample_weight", ""), ("days", "days")])
def test_weights_and_times_below_0_are_said_and_no_features(written, name, time):
    values = np.where(EVERY_SEVENTH, -1, np.arange(ROWS) / 10 + 1)
    checked = check_files([written("own", frame(**{name: values}))], "label", time)
    assert "mend them" in lines(checked, name)["text"]
    assert name not in checked.used


def test_sites_whose_names_differ_in_case_alone_are_said(written):
    path = written("own", frame(ward=np.array(["North", "north", "South"])[np.arange(ROWS) % 3]))
    rows = read_table(path, "label", client_column="ward")
    assert rows.owner_names == ("North", "South", "north")
    [said] = [guess for guess in rows.guesses if guess.column == "ward"]
    assert "'North', 'north' are sites of their own" in said.says


# Ids ----------------------------------------------------------------------------------------------


def test_one_persons_id_in_two_cases_is_one(written):
    ids = [f"ab{n // 2}" if n % 2 else f"AB{n // 2}" for n in range(ROWS)]
    path = written("own", frame(patient_id=ids))
    checked = check_files([path])
    schema = checked.proposal.complete()
    group = decoded(read_raw(path), schema).group
    np.testing.assert_array_equal(group, np.arange(ROWS) // 2)
    alone = read_table(path, "label", group_column="patient_id").group
    assert len(set(zip(alone, np.arange(ROWS) // 2, strict=True))) == ROWS // 2


def test_a_pseudonym_is_a_persons_id_and_other_repeated_words_say_what_they_may_be(written):
    ids = np.arange(ROWS) // 2 + 1001
    words = [f"{(each * 7919) % 2**24:06x}x" for each in ids]
    checked = check_files([written("own", frame(Pseudonym=ids, hash=words))])
    assert [c.kind for c in checked.proposal.columns if c.name == "Pseudonym"] == ["group"]
    assert 'kind = "group"' in dict(checked.not_used)["hash"]


def test_ids_that_were_stored_as_floats_beyond_2_to_the_53_are_said(tmp_path):
    ids = (np.arange(ROWS) // 2 + 2**53).astype(float)
    frame(PatientID=ids).to_parquet(tmp_path / "own.parquet", index=False)
    said = [p.says for p in check_files([tmp_path / "own.parquet"]).problems if p.kind == "id"]
    assert any("their digits are lost" in each for each in said)


# What is left out, and why ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written_so",
    [
        lambda day: f"{day.day}. März {day.year}",
        lambda day: day.strftime("%a, %d %b %Y"),
        lambda day: day.strftime("%Y-%m-%d UTC"),
        lambda day: day.strftime("%Y-%m"),
        lambda day: day.strftime("%Y-%m-%d" if day.day % 2 else "%d.%m.%Y"),
    ],
)
def test_days_that_are_not_read_are_called_days(written, written_so):
    days = pd.date_range("2020-01-01", periods=ROWS, freq="37D")
    checked = check_files([written("own", frame(seen=[*map(written_so, days)]))])
    assert "name days in ways that are not read" in dict(checked.not_used)["seen"]


@pytest.mark.parametrize("cell", ["${:,.2f}", "'{:.2f}", '="{:.0f}"', "{:.2f}-"])
def test_numbers_as_office_programs_write_them_are_no_ids(written, cell):
    costs = np.random.default_rng(3).normal(5000, 900, ROWS)
    checked = check_files([written("own", frame(cost=[cell.format(each) for each in costs]))])
    assert "write them alone" in dict(checked.not_used)["cost"]


# Files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"age,label\n1,a\n2,b\nage,label\n3,a\n", "row 4 is the header again"),
        (b"age,label\n1,a,x\n2,b\nage,label\n3,a\n", "row 4 is the header again"),
        (b"Ward 3,,\n,,\nage,bmi,label\n1,2,a\n", "names 1 of the 3 columns that hold something"),
        (b"age,label\n1,a,\n2,b,\n", "give every cell of a row a name"),
        (b'age,label\n"1,5",a,2\n"2,5",b,2\n', "quote cells that hold the separator"),
        ("age,label\n1,a\n2,b\n".encode("utf-32"), "save it as CSV in UTF-8"),
        ("age,label\n1,a\n2,b\n".encode("utf-16-le"), "save it as CSV in UTF-8"),
    ],
)
def test_a_file_that_would_be_read_wrong_is_refused_with_a_remedy(tmp_path, content, message):
    (tmp_path / "own.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_raw(tmp_path / "own.csv")


def test_a_site_is_called_alike_by_its_file_and_by_the_schema(tmp_path):
    taken_apart = unicodedata.normalize("NFD", "münchen")
    path = tmp_path / f"{taken_apart}.csv"
    frame(seen=["03/04/2021", "05/06/2021"] * 30).to_csv(path, index=False)
    schema = check_files([path]).proposal.complete()
    values = schema.to_values() | {"sites": {taken_apart: {"date-order": "month-first"}}}
    said = TableSchema.of(values, source="schema")
    assert said.writing_of(site_of(path)).date_order == "month-first"
    assert said.writing_of(taken_apart).date_order == "month-first"
    assert site_of(path) == "münchen"

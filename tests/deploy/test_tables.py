"""Commands of tables: from raw files to a schema that a second call accepts."""

import json

import messy_hospitals
import pandas as pd
import pytest
from commands import coterie

from common.data.site_tables import site_table
from common.tables.table_schema import TableSchema
from server_app.record.run_folder import RunFolder


@pytest.fixture
def hospitals(tmp_path):
    return messy_hospitals.write(tmp_path)


def test_one_call_tells_all_and_a_second_accepts_its_schema(tmp_path, hospitals):
    first = coterie("data", "check", *hospitals, "--json", cwd=tmp_path)
    assert first.returncode == 3
    record = json.loads(first.stdout)
    told = {(p["file"].rpartition("/")[2], p["column"], p["kind"]) for p in record["problems"]}
    assert {
        ("north.csv", "patient_id", "id"),
        ("north.csv", "sex", "category"),
        ("north.csv", "visit", "date"),
        ("north.csv", "oldpeak", "missing"),
        ("south.csv", None, "separator"),
        ("south.csv", None, "order"),
        ("south.csv", "oldpeak", "decimal"),
        ("east.tsv", "sex", "category"),
        ("west.csv", "ward", "extra-column"),
    } <= told
    assert all(set(p) == {"file", "column", "kind", "says"} for p in record["problems"])
    second = coterie("data", "check", *hospitals, "--against", record["schema"], cwd=tmp_path)
    assert (second.returncode, second.stdout) == (0, f"schema: {record['schema']}\n")


def test_proposals_of_sites_join_into_the_schema_of_all_their_files(tmp_path, hospitals):
    for file in hospitals:
        words = ("--output", f"{file.stem}.toml")
        assert coterie("data", "check", file, *words, cwd=tmp_path).returncode == 3
    proposals = [f"{file.stem}.toml" for file in hospitals]
    sent = "".join((tmp_path / name).read_text() for name in proposals)
    assert not [number for number in ("1001", "2001", "3001") if number in sent]
    done = coterie("data", "merge", *proposals, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ward: category, not in 3 of 4 files" in done.stdout
    assert coterie("data", "check", *hospitals, cwd=tmp_path).returncode == 3
    pooled = TableSchema.read(tmp_path / "schema.toml")
    assert TableSchema.read(tmp_path / "federation.toml") == pooled


def test_a_schema_that_is_there_is_not_written_over(tmp_path, hospitals):
    (tmp_path / "schema.toml").write_text("mine")
    done = coterie("data", "check", *hospitals, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == f"schema: {tmp_path / 'schema-2.toml'}"
    assert (tmp_path / "schema.toml").read_text() == "mine"


def test_files_that_cannot_be_read_have_a_line_each_and_nothing_is_written(tmp_path, hospitals):
    bad = [tmp_path / "bad-1.csv", tmp_path / "bad-2.csv"]
    bad[0].write_text("")
    before = set(tmp_path.iterdir())
    done = coterie("data", "check", hospitals[0], *bad, "--json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert [str(path) in line for path, line in zip(bad, done.stderr.splitlines(), strict=True)]
    assert set(tmp_path.iterdir()) == before


def test_proposals_without_a_label_are_not_joined(tmp_path):
    (tmp_path / "own.csv").write_text("age,stage\n" + "\n".join(f"{n},{n % 2}" for n in range(30)))
    done = coterie("data", "check", "own.csv", cwd=tmp_path)
    assert "not enough yet: the proposal: 0 columns of kind 'label'" in done.stdout
    done = coterie("data", "merge", "schema.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert not (tmp_path / "federation.toml").exists()


SMALL = ("strategy=fedavg", "num-server-rounds=2", "local-epochs=1", "workers=1")


def test_two_commands_lead_from_raw_files_to_a_federation_and_its_page(tmp_path, hospitals):
    coterie("data", "check", *hospitals, cwd=tmp_path)
    done = coterie("simulate", *hospitals, "table-schema=schema.toml", *SMALL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = RunFolder(next((tmp_path / "runs").iterdir()))
    assert {site.site for site in run.sites()} == {"north", "south", "east", "west"}
    assert (run.path / "report.html").is_file()


def test_predictions_for_raw_rows_are_those_of_the_evaluation(tmp_path, hospitals):
    file = hospitals[1]
    coterie("data", "check", file, cwd=tmp_path)
    words = (file, "table-schema=schema.toml", "split=iid", "num-clients=2", *SMALL)
    done = coterie("simulate", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = next((tmp_path / "runs").iterdir())
    coterie("predict", run, file, "--output", "out.csv", cwd=tmp_path)
    rows, _ = site_table(
        file, TableSchema.read(tmp_path / "schema.toml"), site="south", test_fraction=0.2
    )
    predicted = pd.read_csv(tmp_path / "out.csv")["prediction"]
    truth = pd.Series(rows.class_names)[rows.y].reset_index(drop=True)
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert (predicted == truth)[rows.test].mean() == pytest.approx(lines[-1]["accuracy"])

"""Three hospitals as real processes: TLS, node keys, each with its own file."""

import json
import shutil
import socket
import ssl

import deployments
import httpx
import numpy as np
import pytest
from flwr.app import Context, RecordDict
from safetensors.numpy import load_file

from common.config import Settings
from deploy.certificates import Authority
from deploy.simulation import InProcessGrid, load_client_app
from deploy.site import SiteFile
from deploy.site_keys import init
from server_app import app as server_app

HOSPITALS = ("cleveland", "hungarian", "va")
FILES = {site: f"HeartDisease/processed.{site}.data" for site in HOSPITALS}
RUN = {"strategy": "fedavg", "dataset": "heart-disease", "num-clients": 3, "local-epochs": 2}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.shared_data,
    pytest.mark.timeout(4 * deployments.PATIENCE),
]


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory, shared_data):
    """A running server and three running sites, each with its own hospital's file."""
    with deployments.deployment(tmp_path_factory.mktemp("hospitals"), host="0.0.0.0") as running:
        entries = {site: {"data-path": str(shared_data / file)} for site, file in FILES.items()}
        running.provision(entries, {"dataset": "heart-disease", "device": "cpu"})
        running.serve()
        running.coterie("register", running.server)
        for site in HOSPITALS:
            running.start_site(site)
        yield running


def words(settings):
    return [f"{key}={value}" for key, value in settings.items()]


def lines(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def in_one_process(hospitals, settings, output_dir):
    """The run folder of the same sites, from the same site files, without a network."""
    run_config = Settings.parse(settings | {"output-dir": str(output_dir)}).to_dict()
    with InProcessGrid(load_client_app, run_config, num_nodes=3, workers=1) as grid:
        for context, site in zip(list(grid._contexts.values()), HOSPITALS, strict=True):
            own = SiteFile.read(hospitals.folder / site / "site.toml").node_config
            # What the running site keeps is its own; this one gets a copy of nothing.
            context.node_config = own | {"state-dir": str(output_dir / f"state-{site}")}
        context = Context(1, 1, {}, RecordDict(), dict(run_config))
        server_app.app(grid, context)
    return server_app.run_folder_of(context)


def test_each_site_trains_on_its_own_file_with_the_same_numbers_as_in_one_process(
    hospitals, tmp_path
):
    settings = RUN | {"num-server-rounds": 2}
    folder = hospitals.run(*words(settings))
    sites = {site["site"]: site for site in json.loads((folder / "sites.json").read_text())}
    rows = {name: site["num_examples"] + site["num_test_examples"] for name, site in sites.items()}
    assert rows == {"cleveland": 303, "hungarian": 261, "va": 130}

    ours = in_one_process(hospitals, settings, tmp_path)
    first, second = (load_file(path / "models" / "model-0.safetensors") for path in (folder, ours))
    assert all(np.array_equal(first[name], second[name]) for name in first)
    deployed, simulated = (lines(path, "rounds.jsonl") for path in (folder, ours))
    assert [line["accuracy"] for line in deployed] == [line["accuracy"] for line in simulated]
    assert [line["bytes_up"] for line in deployed] == [line["bytes_up"] for line in simulated]
    joined = [entry for entry in lines(folder, "audit.jsonl") if entry["event"] == "joined"]
    assert [entry["site"] for entry in joined] == list(HOSPITALS)


def stranger(hospitals, name):
    """The folder of a site that was never provisioned, with a copy of another one's settings."""
    folder = hospitals.folder / name
    init(name, folder)
    for file in ("ca.crt", "site.toml"):
        shutil.copyfile(hospitals.folder / "va" / file, folder / file)
    return folder


def refused(hospitals, folder, said):
    """Start a site that must not get in; the server's new warnings."""
    before = len(hospitals.warnings())
    process = hospitals.start(folder.name, "site", "--config", folder / "site.toml")
    assert process.wait(timeout=deployments.PATIENCE) != 0
    assert said in hospitals.log(folder.name)
    return hospitals.wait_for("a warning", lambda: hospitals.warnings()[before:])


def test_an_unregistered_key_is_refused_and_logged(hospitals):
    folder = stranger(hospitals, "unregistered")
    fingerprint = init("unregistered", folder).supernode_fingerprint
    warned = refused(hospitals, folder, "Failed to initialize the connection")
    assert any(fingerprint[:16] in line for line in warned)


def test_a_server_of_another_authority_is_refused_by_the_site_and_logged(hospitals):
    folder = stranger(hospitals, "deceived")
    Authority.create("other").save(folder / "ca.crt", folder / "other.key")
    warned = refused(hospitals, folder, "CERTIFICATE_VERIFY_FAILED")
    assert any("no TLS connection" in line and "UNKNOWN_CA" in line for line in warned)


def test_plain_text_is_refused_and_logged(hospitals):
    before = len(hospitals.warnings())
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://localhost:{hospitals.port}/health", trust_env=False)
    warned = hospitals.wait_for("a warning", lambda: hospitals.warnings()[before:])
    assert "no TLS connection: HTTP_REQUEST" in warned[0]


def test_only_this_machine_may_submit(hospitals):
    address = outside_address()
    context = ssl.create_default_context(cafile=str(hospitals.server / "ca.crt"))
    context.check_hostname = False  # the certificate is for localhost
    before = len(hospitals.warnings())
    with httpx.Client(verify=context, trust_env=False) as client:
        url = f"https://{address}:{hospitals.port}"
        assert client.get(f"{url}/health").status_code == 200
        assert client.post(f"{url}/v1/control/list-runs").status_code == 403
    assert f"refused {address} /v1/control/list-runs" in hospitals.warnings()[before]


def outside_address():
    """An address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError as error:
            pytest.skip(f"this machine has no address but loopback: {error}")
        return probe.getsockname()[0]


def test_a_failed_run_is_told_by_the_exit_code(hospitals):
    process = hospitals.submit(*words(RUN | {"dataset": "digits", "num-server-rounds": 1}))
    assert process.wait(timeout=deployments.PATIENCE) == 1
    folder = hospitals.newest_run()
    assert (
        "submit it with dataset=heart-disease"
        in json.loads((folder / "status.json").read_text())["error"]
    )
    assert lines(folder, "audit.jsonl")[-1]["event"] == "failed"


def test_a_site_killed_in_a_round_is_missed_and_the_run_ends(hospitals):
    settings = RUN | {"num-server-rounds": 3, "log-format": "json"}
    before = hospitals.log("va").count("Receiving: train message")
    process = hospitals.submit(*words(settings))
    hospitals.wait_for(
        "round 2 to reach va",
        lambda: hospitals.log("va").count("Receiving: train message") >= before + 2,
    )
    hospitals.kill("va")
    assert process.wait(timeout=deployments.PATIENCE) == 0, hospitals.log("submit")

    folder = hospitals.newest_run()
    assert json.loads((folder / "status.json").read_text())["state"] == "finished"
    rounds = lines(folder, "rounds.jsonl")
    assert [line["missing"] for line in rounds[:2]] == [[], ["va"]]
    assert [line["trained"] for line in rounds] == [
        ["cleveland", "hungarian", "va"],
        ["cleveland", "hungarian"],
        ["cleveland", "hungarian"],
    ]
    trail = lines(folder, "audit.jsonl")
    story = [(entry["event"], entry.get("site")) for entry in trail]
    assert story.index(("missing", "va")) < story.index(("left", "va"))
    assert trail[-1]["event"] == "finished"
    # and the run's own log lines were JSON
    records = [line for line in hospitals.log("submit").splitlines() if line.startswith('{"time"')]
    assert any("va: no reply" in json.loads(line)["message"] for line in records)

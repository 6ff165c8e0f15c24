"""Tab completion: whole words for zsh and fish, bare values for bash, which splits at =."""

from common.config import Settings, kebab_case
from common.config.completion import complete


def test_beginnings_become_settings_and_settings_get_their_values():
    keys = {f"{kebab_case(name)}=" for name in Settings.fields()}
    assert set(complete([], "")) == keys
    assert complete(["seed=1"], "num-s") == ["num-server-rounds="]
    assert complete([], "strategy=simc") == ["strategy=simclust"]  # of a table no field names
    assert complete([], "secagg=") == ["secagg=true", "secagg=false"]
    assert complete([], "objective=fedpr") == ["objective=fedprox"]  # of a table
    assert complete([], "engine=l") == ["engine=loop"]  # of a list
    assert complete([], "seed=") == complete([], "no-setting=") == complete([], "no-s") == []


def test_bash_wants_the_value_alone():
    assert complete(["strategy", "="], "simc") == ["simclust"]
    assert complete(["seed=1", "secagg"], "") == ["true", "false"]
    assert complete(["strategy", "=", "simclust"], "num-s") == ["num-server-rounds="]


def test_all_that_is_offered_is_accepted():
    for word in complete([], "objective=") + complete([], "engine=") + complete([], "split="):
        if word != "split=dirichlet-partitioned":
            Settings.parse({"momentum": 0} | dict([word.split("=")]))

"""Shards: every run in one of them."""

import pytest

from common.errors import ConfigError
from deploy.compare.shard import Shard


@pytest.mark.parametrize("of_all", [1, 2, 3, 7])
def test_every_run_is_in_one_shard_and_they_are_of_a_size(of_all):
    shards = [Shard.parse(f"{i}/{of_all}").of(range(5)) for i in range(1, of_all + 1)]
    assert sorted(run for shard in shards for run in shard) == list(range(5))
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "-1/2", "a/b", "1/2/3", "1 / 2"])
def test_other_words_are_refused(text):
    with pytest.raises(ConfigError, match=r"--shard .*give i/n"):
        Shard.parse(text)

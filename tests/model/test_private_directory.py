"""Test which directories are private, so that programs can be loaded from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudiag.model.run_directory import cache_home, is_private
from gpudiag.training.strategies.shared_host import native
from tests.other_user import needs_root


def made(directory: Path, mode: int = 0o700) -> Path:
    directory.mkdir(parents=True)
    directory.chmod(mode)
    return directory


def test_directory_of_this_user_is_private(tmp_path: Path) -> None:
    assert is_private(made(tmp_path / "a"))
    assert not is_private(made(tmp_path / "b", 0o777))


def test_a_link_is_not_private(tmp_path: Path) -> None:
    made(tmp_path / "a")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert not is_private(tmp_path / "link")


@pytest.mark.parametrize(("mode", "private"), [(0o755, True), (0o777, False), (0o1777, True)])
def test_a_directory_that_others_can_replace_is_not_private(tmp_path: Path, mode: int, private: bool) -> None:
    made(tmp_path / "above" / "a")
    (tmp_path / "above").chmod(mode)
    assert is_private(tmp_path / "above" / "a") is private


@needs_root
def test_a_directory_below_a_directory_of_another_user_is_not_private(tmp_path: Path) -> None:
    import os

    made(tmp_path / "above" / "a")
    os.chown(tmp_path / "above", 65534, 65534)
    assert not is_private(tmp_path / "above" / "a")


def test_a_relative_cache_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_home({"XDG_CACHE_HOME": "here"}) == tmp_path / ".cache"
    assert cache_home({"XDG_CACHE_HOME": str(tmp_path / "x")}) == tmp_path / "x"


def test_compiled_loops_are_kept_in_private_directories_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert native._private_cache() == tmp_path / "cache" / "gpudiag" / "native"
    (tmp_path / "cache" / "gpudiag").chmod(0o777)
    assert native._private_cache() is None

"""Test that facts.json is written atomically and read as untrusted data."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpudiag.errors import GpudiagError, UnreadableInputError
from gpudiag.machine.facts_file import decode_facts, load_facts, save_facts
from gpudiag.model.facts import Facts, Host
from gpudiag.model.run_directory import encode_json
from tests.machines import NAMES, machine

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", NAMES)
def test_saved_facts_are_read_back(name: str, tmp_path: Path) -> None:
    facts = machine(name)
    save_facts(facts, tmp_path / "new" / "facts.json")
    assert load_facts(tmp_path / "new" / "facts.json") == facts
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["facts.json"], "a temporary file remains"


def test_saved_file_has_the_usual_permissions(tmp_path: Path) -> None:
    save_facts(machine("dgx-1"), tmp_path / "facts.json")
    (tmp_path / "other").touch()
    assert (tmp_path / "facts.json").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_write_error_leaves_the_old_file(tmp_path: Path) -> None:
    with pytest.raises(GpudiagError, match="cannot write"):
        save_facts(machine("dgx-1"), tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(GpudiagError, match="cannot write"):
        save_facts(machine("dgx-1"), tmp_path / "file" / "facts.json")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "no schema"),
        (b"{}", "no schema"),
        (b'{"schema": 3}', "no schema"),
        (b'{"schema": "gpudiag/facts/99", "host": {}}', "'gpudiag/facts/99'"),
        (b'{"schema": "gpudiag/\\u001b[2J"}', "'gpudiag/\ufffd\\[2J'"),
        (b'{"schema": "gpudiag/facts/1"}', "damaged: .*`host`"),
        (b'{"schema": "gpudiag/facts/1", "host": {}, "gpus": [{"index": "0", "name": "x"}]}', "damaged: .*index"),
    ],
)
def test_invalid_facts_are_rejected(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_bytes(data)
    with pytest.raises(UnreadableInputError, match=words) as caught:
        load_facts(path)
    assert caught.value.exit_code == 4
    assert "gpudiag topology --save" in caught.value.hint
    assert str(caught.value).isprintable()


def test_files_that_block_or_are_too_large_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("pipe", "not a file"), (".", "a directory"), ("missing", "not there")):
        with pytest.raises(UnreadableInputError, match=words):
            load_facts(tmp_path / name)
    monkeypatch.setattr("gpudiag.machine.facts_file._MOST_BYTES", 1000)
    (tmp_path / "large").write_bytes(b" " * 1001)
    with pytest.raises(UnreadableInputError, match="larger than"):
        load_facts(tmp_path / "large")


def test_strings_and_keys_are_sanitized() -> None:
    host = Host(name="a\x1b[31m\u202eb\x9b", environment={"NCCL_\x07": "x\ny"}, reasons={"\u200bz": "q"})
    read = decode_facts(encode_json(Facts(host=host))).host
    assert read.name == "a\ufffd[31m\ufffdb\ufffd"
    assert read.environment == {"NCCL_\ufffd": "x\ufffdy"}
    assert read.reasons == {"\ufffdz": "q"}


def test_unknown_fields_of_a_file_are_ignored() -> None:
    tree = msgspec.to_builtins(machine("dgx-1")) | {"new": 1}
    assert decode_facts(msgspec.json.encode(tree)) == machine("dgx-1")

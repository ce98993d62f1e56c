"""Test the table forms of earlier benchmarks on points with known figures."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from gpudiag.analysis.scaling.conclude import conclude
from gpudiag.commands.main import main
from gpudiag.model.benchmarks.scale_request import Wanted
from gpudiag.model.benchmarks.scaling import SCALING_FILE
from gpudiag.model.benchmarks.tables import FORMS
from gpudiag.model.run_directory import write_json
from tests.app.scale.points import measured


@pytest.fixture
def benchmark(tmp_path: Path) -> Path:
    """Save points of two strategies, a second batch size, a compiled model, and the prediction of a volume at two
    blocks per second."""
    points = [
        measured(1, 30.0, parameters=25_557_032),
        measured(4, 40.0, parameters=25_557_032),
        measured(1, 30.0, strategy="independent"),
        measured(4, 32.0, strategy="cpu-reduce"),
        measured(1, 60.0, batch_per_device=128),
        measured(4, 64.0, batch_per_device=128),
        measured(4, 20.0, batch_per_device=128, options={"compile": "True"}),
        measured(
            *(2, 500.0),
            workload="unet3d-predict",
            strategy="independent",
            batch_per_device=1,
            voxels_per_sample=4.4e6,
            mvox_per_s=17.6,
        ),
    ]
    result = conclude(
        points,
        {},
        None,
        remarks=(),
        mode="weak",
        command=(),
        version="0",
        wanted=Wanted(),
        need_peers={("pytorch", "cpu-reduce")},
    )
    write_json(tmp_path / SCALING_FILE, result)
    return tmp_path


def tables(benchmark: Path, form: str, capsys: pytest.CaptureFixture[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each table of the form, by heading."""
    assert main(["table", str(benchmark), "--form", form, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["schema"] == "gpudiag/form-tables/1"
    return {
        table["form"]: [dict(zip([c["heading"] for c in table["columns"]], row, strict=True)) for row in table["rows"]]
        for table in said["tables"]
    }


def test_training_form_shows_iterations_of_all_devices(benchmark: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tables(benchmark, "training", capsys)["training"]
    four = next(row for row in rows if (row["system"], row["samples per iteration"]) == ("resnet50 (x4)", 256))
    assert four["1001 iterations [s]"] == pytest.approx(40.04)
    assert four["iterations per minute"] == pytest.approx(1500)
    assert four["100k iterations [d]"] == pytest.approx(4000 / 86400)
    assert four["samples of 100k on one device [d]"] == pytest.approx(1000 / 86400)


def test_every_form_has_its_columns_and_units(benchmark: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forms = tables(benchmark, "all", capsys)
    assert tuple(forms) == tuple(FORMS)
    (volume,) = forms["prediction"]
    assert volume["8.1 Tvox [h]"] == pytest.approx(8.1e12 / 17.6e6 / 3600)
    assert [row["speedup"] for row in forms["models"]] == pytest.approx([3.0, 3.75])
    assert forms["medians"][0]["median efficiency"] == pytest.approx(100 * 3.375 / 4)
    by_batch = next(row for row in forms["batches"] if (row["strategy"], row["gpu count"]) == ("nccl", 4))
    assert by_batch["64: speedup"] == pytest.approx(3.0)
    assert by_batch["128: efficiency"] == pytest.approx(100 * 60 / 64)
    rungs = [(row["batch per device"], row["compiled"], row["of the first"]) for row in forms["ladder"]]
    assert rungs == [(64, "", 1.0), (128, "", pytest.approx(1.25)), (128, "yes", pytest.approx(4.0))]
    relative = {row["strategy"]: row["of cpu-reduce"] for row in forms["relative"]}
    assert relative == pytest.approx({"nccl": 80.0, "cpu-reduce": 100.0})
    assert forms["devices"] == forms["pairs"] == []


def test_forms_are_written_as_text_markdown_and_csv(
    benchmark: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, sheet = tmp_path / "forms.md", tmp_path / "form.csv"
    assert main(["table", str(benchmark), str(tmp_path / "none"), "--form", "all", "--markdown", str(page)]) == 0
    out = capsys.readouterr().out
    assert "Not measured: pairs of devices (--subsets pairs) with a valid baseline" in " ".join(out.split()).replace(
        "`", ""
    )
    assert "Left out" in out
    assert page.read_text().count("\n## ") == len(FORMS)
    assert main(["table", str(benchmark), "--form", "prediction", "--csv", str(sheet)]) == 0
    assert [row["Mvox/s"] for row in csv.DictReader(sheet.read_text().splitlines())] == ["17.6"]


@pytest.mark.parametrize("words", [("--form", "trainin"), ("--form", "all", "--csv", "x.csv")])
def test_unknown_form_is_refused(benchmark: Path, words: tuple[str, ...]) -> None:
    assert main(["table", str(benchmark), *words]) == 2

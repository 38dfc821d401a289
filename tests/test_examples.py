"""Every example runs and shows what it promises."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_own_loop() -> None:
    result = load("own_loop").main()
    assert result["identified"] > 0.3 and result["purity"] > 0.8
    assert result["tab"] > result["erm"] + 0.1


def test_one_call(tmp_path: Path) -> None:
    result = load("one_call").main(str(tmp_path / "report.html"))
    assert 0 < result.partition.minority.sum() < len(result.partition.minority) / 4
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert type(result.model) is type(result.baseline)


def test_boosting_table() -> None:
    result = load("boosting_table").main()
    assert result["after"] > result["before"] + 0.2


def test_embeddings_head(tmp_path: Path) -> None:
    worst = load("embeddings_head").main(tmp_path / "embedded")
    assert min(worst["tab"], worst["evenhand"]) > worst["erm"] + 0.3


def test_evaluate_groups() -> None:
    scores = load("evaluate_groups").main()
    assert scores.worst["group"].startswith("size = medium, ") and scores.worst["accuracy"] < 0.5
    assert "size unknown" in set(scores.frame["group"])


def test_torch_loader() -> None:
    worst = load("torch_loader").main()
    assert worst["tab"] > worst["erm"] + 0.1


def test_lightning_loop() -> None:
    pytest.importorskip("lightning", reason="needs evenhand[lightning]")
    worst = load("lightning_loop").main()
    assert worst["tab"] > worst["erm"] + 0.1


def test_accelerate_loop() -> None:
    pytest.importorskip("accelerate", reason="needs evenhand[transformers]")
    worst = load("accelerate_loop").main()
    assert worst["tab"] > worst["erm"] + 0.1


def test_fabric_loop() -> None:
    pytest.importorskip("lightning", reason="needs evenhand[lightning]")
    worst = load("fabric_loop").main()
    assert worst["tab"] > worst["erm"] + 0.1


def test_datasets_columns(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="needs evenhand[datasets]")
    frame = load("datasets_columns").main(tmp_path)
    minority = frame[frame["pseudo_group"] == "minority"]
    assert minority["follows"].mean() < 0.5 < frame["follows"].mean()
    assert minority["sample_weight"].min() > 2 and (tmp_path / "weighted.csv").is_file()


def test_share_run(tmp_path: Path) -> None:
    for name in ("timm", "tensorboard", "mlflow"):
        pytest.importorskip(name, reason="needs evenhand[timm,trackers]")
    out = load("share_run").main(tmp_path)
    card = (out / "README.md").read_text()
    assert all(f"worst {what}" in card for what in ("class", "pseudo-group", "known group"))


def test_transformers_trainer() -> None:
    pytest.importorskip("transformers", reason="needs evenhand[transformers]")
    worst = load("transformers_trainer").main()
    assert worst["tab"] > worst["erm"] + 0.1


def test_every_example_is_tested() -> None:
    source = Path(__file__).read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f'"{path.stem}"' in source, f"{path.name} has no test"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

"""Every figure from hand-made records: the numbers that are drawn, the words beside them, the files."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from made_bench import curves, whole, write
from typer.testing import CliRunner

from evenhand.bench.grid import DYNAMICS, FIGURES, STRENGTHS
from evenhand.bench.results import frame
from evenhand.cli import app
from evenhand.report import drawing, figures, palette
from evenhand.report.figures import unlearning
from evenhand.training.recipe import Recipe
from evenhand.training.record import Record, find

LONG = Recipe(batch_size=2048, precision="fp32", **DYNAMICS)
PAIR = {"lr": 1e-3, "weight_decay": 0.0}
SWEPT = ("erm", "erm_randaug", "tab", "eta_tab", "minibatch_tab")


def draw(name: str, records: list[Record], wanted: Sequence[str] = ()) -> drawing.Drawn:
    """A figure of records."""
    return figures.draw(name, frame(records), wanted)


def sweep_wga(p: float, method: str, seed: int) -> float:
    return round(0.9 - 0.5 * (p - 0.5) + 0.02 * SWEPT.index(method) + 0.01 * seed, 6)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """A whole bench of even_odd, its dynamics, and a sweep of cmnist."""
    runs = tmp_path_factory.mktemp("runs")
    whole(runs)
    for seed in range(3):
        write(runs, "tab", PAIR, seed=seed, recipe=LONG, dynamics=curves(50, seed), pseudo=True)
    for p in STRENGTHS:
        task, spec = ("cmnist", "cmnist") if p == 0.98 else (f"cmnist-p{p:g}", f"cmnist:p={p:g}")
        for method in SWEPT:
            for seed in (0, 1):
                wga = sweep_wga(p, method, seed)
                write(runs, method, {"weight_decay": 1e-4}, seed=seed, task=task, spec=spec, wga=wga)
    return list(find(runs))


def axes_of(drawn: drawing.Drawn) -> list:
    return drawn.figure.get_axes()


def heights(axes: object) -> list[float]:
    return [bar.get_height() for bar in axes.patches if bar.get_width() < 1]  # type: ignore[attr-defined]


def test_validation_shows_the_four_curves_and_where_they_part(records: list[Record]) -> None:
    drawn = draw("validation", records, ["even_odd"])
    panels = list(drawn.data["panels"].values())
    wanted = [curves(50, seed)["stages"]["erm"]["val"] for seed in range(3)]
    np.testing.assert_allclose(panels[0], [each["conflicting"]["accuracy"] for each in wanted])
    np.testing.assert_allclose(panels[1], [each["aligned"]["accuracy"] for each in wanted])
    mean = [
        np.mean([each[kind]["accuracy"] for each in wanted], axis=0) for kind in ("aligned", "conflicting")
    ]
    np.testing.assert_allclose(
        panels[2].mean(0), 0.99 * mean[0] + 0.01 * mean[1]
    )  # 99 aligned to one conflicting
    line = axes_of(drawn)[1].lines[0]
    np.testing.assert_allclose(line.get_ydata(), 100 * mean[0])
    assert len(line.get_xdata()) == 50 and line.get_xdata()[0] == 1
    start, end = drawn.data["zone"]
    assert start < 25 < end  # the dip is in the middle
    assert "even_odd with cnn, 3 seeds, no early stopping" in drawn.caption
    assert "The paper's figure is of Waterbirds with ResNet-34" in drawn.caption


def test_unlearning_is_found_only_where_it_happens() -> None:
    aligned = np.array([0.5, 0.9, 0.8, 0.7, 0.85, 0.95])
    rising, flat = np.linspace(0, 1, 6), np.zeros(6)
    assert unlearning(aligned, rising) == (1, 4)
    assert unlearning(aligned, flat) is None and unlearning(np.linspace(0, 1, 6), rising) is None


def test_dynamics_fall_back_to_runs_that_stopped_early(records: list[Record]) -> None:
    usual = [
        r for r in records if r.config["full_recipe"]["patience"] == 5 and r.config["task"] == "even_odd"
    ]
    drawn = draw("training", usual)
    assert "with early stopping" in drawn.caption and len(drawn.data["even_odd"]["wrong"]) == 20


def test_dynamics_of_a_search_are_of_one_pair_however_long_others_were_trained(tmp_path: Path) -> None:
    lengths = {0.0: (9, 7, 8), 1e-4: (12, 5, 12), 1e-2: (6, 12, 6)}
    for decay, epochs in lengths.items():
        for seed, length in enumerate(epochs):
            options, val = {"lr": 1e-3, "weight_decay": decay}, 0.95 - decay
            write(tmp_path, "erm", options, seed=seed, val=val, dynamics=curves(length, seed))
    made = list(find(tmp_path))
    for name in ("validation", "training"):
        assert axes_of(draw(name, made))[0].lines[0].get_xdata()[-1] == 7  # the shortest of the pair
    assert "selected" not in draw("validation", made).caption


def test_dynamics_of_a_pair_that_was_not_selected_say_so(tmp_path: Path) -> None:
    made = [write(tmp_path, "erm", PAIR, val=0.95)]
    made += [write(tmp_path, "erm", {"lr": 1e-3, "weight_decay": 1e-2}, recipe=LONG, dynamics=curves(9))]
    said = (
        "no early stopping, with lr=0.001, weight_decay=0.01 since no such run has ERM's selected lr=0.001, "
    )
    assert said + "weight_decay=0." in draw("validation", made).caption


def test_validation_goes_on_until_erm_stops_and_training_until_tab_has_clusters(tmp_path: Path) -> None:
    for seed in range(2):
        write(tmp_path, "erm", PAIR, seed=seed, dynamics=curves(30 + seed, seed, clusters=False))
    for seed in range(3):
        write(tmp_path, "tab", PAIR, seed=seed, dynamics=curves(8, seed))
    made = list(find(tmp_path))
    shown = draw("validation", made)
    assert next(iter(shown.data["panels"].values())).shape == (2, 30)  # not cut to TAB's third seed
    found = draw("training", made).data["even_odd"]
    assert len(found["wrong"]) == 8 and found["clusters"] is not None


@pytest.mark.parametrize("name", ["validation", "selection", "training", "cost"])
def test_a_figure_of_one_task_refuses_two(records: list[Record], name: str) -> None:
    with pytest.raises(
        ValueError, match=f"the figure '{name}' shows one task, got even_odd and cmnist; draw one"
    ):
        draw(name, records, ["even_odd", "cmnist"])


def test_training_shows_errors_losses_and_clusters(records: list[Record]) -> None:
    drawn = draw("training", records)
    shown = drawn.data["even_odd"]
    train = [curves(50, seed)["stages"]["erm"]["train"] for seed in range(3)]
    wrong = 100 * (1 - np.mean([each["conflicting"]["accuracy"] for each in train], axis=0))
    np.testing.assert_allclose(axes_of(drawn)[0].lines[0].get_ydata(), wrong)
    np.testing.assert_allclose(shown["loss"]["aligned"], train[0]["aligned"]["loss"])
    assert shown["clusters"] == pytest.approx({"majority": 5 / 4900, "minority": 0.45, "all": 0.01})
    assert heights(axes_of(drawn)[2]) == pytest.approx([500 / 4900, 45])


def test_selection_shows_every_candidate_its_rank_and_what_is_selected(records: list[Record]) -> None:
    drawn = draw("selection", records, ["even_odd"])
    jtt = drawn.data["jtt"]
    assert len(jtt["wga"]) == 25 and sorted(jtt["ranks"]) == list(range(1, 26))
    assert jtt["labels"][jtt["by_accuracy"]] == "50/10" and jtt["ranks"][jtt["by_accuracy"]] == 1
    assert jtt["labels"][jtt["by_wga"]] == "1/ratio" and jtt["ranks"][jtt["by_wga"]] == 25
    titles = {axes.get_title(loc="left"): axes for axes in axes_of(drawn)}
    assert list(titles) == ["ERM", "MaskTune", "LfF", "JTT"]
    assert heights(titles["JTT"]) == pytest.approx([100 * wga for wga in jtt["wga"]])
    crossed = [i for i, bar in enumerate(titles["JTT"].patches) if bar.get_hatch()]
    assert crossed == [jtt["by_accuracy"]]
    labels = [text.get_text() for text in titles["JTT"].texts]
    assert labels[jtt["by_wga"]] == "★\n25" and labels[jtt["by_accuracy"]] == "1"
    assert drawn.data["lines"] == pytest.approx({"erm": 0.51, "tab": 0.83})
    assert [line.get_ydata()[0] for line in titles["LfF"].lines] == pytest.approx([51, 83])
    assert "Waterbirds" in drawn.caption and "Unfinished" not in drawn.caption
    assert titles["ERM"].get_xlabel() == "weight decay"  # the learning rate does not vary


def test_correlation_shows_means_over_seeds_at_every_p(records: list[Record]) -> None:
    drawn = draw("correlation", records, ["cmnist"])
    shown = drawn.data["cmnist tab wga"]
    assert list(shown.index) == list(STRENGTHS)
    for p, numbers in shown.iterrows():
        low, high = (100 * sweep_wga(p, "tab", seed) for seed in (0, 1))
        assert numbers.tolist() == pytest.approx([(low + high) / 2, low, high])
    headings = [axes.get_title(loc="left") for axes in axes_of(drawn)]
    assert headings == ["mean accuracy, as in training", "mean accuracy, balanced", "worst-group accuracy"]
    ticks = [label.get_text() for label in axes_of(drawn)[2].get_xticklabels()]
    assert ticks == ["50", "75", "90", "95", "98", "99", "99.5"]
    assert not any("erm_randaug" in name for name in drawn.data) and "2 seeds; model cnn" in drawn.caption


@pytest.mark.parametrize(
    ("name", "methods"),
    [("eta", ("erm", "erm_randaug", "tab", "eta_tab")), ("minibatch", ("erm", "tab", "minibatch_tab"))],
)
def test_variants_of_tab_are_compared_at_every_p(
    records: list[Record], name: str, methods: tuple[str, ...]
) -> None:
    drawn = draw(name, records, ["cmnist"])
    assert len(drawn.data) == len(methods) * 2
    low = 100 * sweep_wga(0.99, methods[-1], 0)
    shown = drawn.data[f"cmnist {methods[-1]} wga"].loc[0.99].tolist()
    assert shown == pytest.approx([low + 0.5, low, low + 1])
    assert len(heights(axes_of(drawn)[0])) == len(drawn.data) * len(STRENGTHS)


def test_collapsed_seeds_are_named_and_lines_end_where_the_seeds_do(tmp_path: Path) -> None:
    for p, wgas in {0.5: (0.1, 0.1, 0.1), 0.9: (0.0, 0.93, 0.96), 0.95: (0.004, 0.5, 0.0)}.items():
        for seed, wga in enumerate(wgas):
            spec = f"cmnist:p={p:g}"
            write(tmp_path, "tab", PAIR, seed=seed, task=f"cmnist-p{p:g}", spec=spec, wga=wga)
    drawn = draw("correlation", list(find(tmp_path)))
    assert "Seeds with a WGA below 1%: TAB on cmnist at p = 90% (1 of 3), 95% (2 of 3)." in drawn.caption
    assert drawn.data["cmnist tab wga"].loc[0.9].tolist() == pytest.approx([63, 0, 96])
    (ends,) = (lines.get_segments()[1][:, 1] for lines in axes_of(drawn)[2].collections)
    assert ends == pytest.approx([0, 96])


def test_evenhand_stands_beside_tab_where_it_was_run(tmp_path: Path) -> None:
    for method, wga in (("erm", 0.3), ("tab", 0.5), ("evenhand", 0.7)):
        for p in (0.9, 0.95):
            spec, settings = f"cmnist:p={p:g}", {"weight_decay": 1e-4}
            write(tmp_path, method, settings, task=f"cmnist-p{p:g}", spec=spec, wga=wga)
    write(
        tmp_path, "erm", PAIR, task="cmnist-p0.9", spec="cmnist:p=0.9", wga=0.2, val=0.1
    )  # a second candidate
    made = list(find(tmp_path))
    assert draw("correlation", made).data["cmnist evenhand wga"]["mean"].tolist() == pytest.approx([70, 70])
    assert draw("selection", made).data["lines"] == pytest.approx({"erm": 0.3, "tab": 0.5, "evenhand": 0.7})
    cost = draw("cost", made)
    assert list(cost.data) == ["erm", "tab", "evenhand"]
    colours = [matplotlib.colors.to_hex(bar.get_facecolor()) for bar in axes_of(cost)[0].patches]
    assert colours == [palette.look(method).light for method in cost.data]  # as on pages


@pytest.mark.parametrize("name", ["eta", "minibatch"])
def test_without_the_variant_there_is_nothing_to_compare(records: list[Record], name: str) -> None:
    plain = [record for record in records if record.method in ("erm", "tab")]
    assert draw("correlation", plain, ["cmnist"])
    with pytest.raises(ValueError, match=f"no runs for the figure '{name}' of cmnist"):
        draw(name, plain, ["cmnist"])


def test_a_line_above_all_bars_is_inside_the_figure(tmp_path: Path) -> None:
    made = [write(tmp_path, "erm", {"lr": 1e-3, "weight_decay": w}, wga=0.05) for w in (0.0, 1e-4)]
    made += [write(tmp_path, "tab", {"lr": 1e-3, "weight_decay": 0.0}, wga=0.7)]
    drawn = draw("selection", made)
    assert all(axes.get_ylim()[1] > 70 for axes in axes_of(drawn) if axes.get_title())


def test_one_candidate_is_named_by_its_settings_and_a_selected_zero_is_seen(tmp_path: Path) -> None:
    made = [write(tmp_path, "erm", {"lr": 1e-3, "weight_decay": w}, wga=w, val=1 - w) for w in (0.0, 0.01)]
    made += [write(tmp_path, "jtt", {"identifier_epochs": 10, "upweight": 25, **PAIR}, wga=0.5)]
    titles = {axes.get_title(loc="left"): axes for axes in axes_of(draw("selection", made))}
    assert titles["JTT"].get_xlabel() == "identifier\nepochs /\nupweight"
    assert [label.get_text() for label in titles["JTT"].get_xticklabels()] == ["10/25"]
    marks = [[line.get_marker() for line in titles[name].lines] for name in ("ERM", "JTT")]
    assert marks == [["X", "None"], ["None"]]  # ERM's line is the other


def test_cost_shows_the_longest_run_and_the_search(records: list[Record]) -> None:
    drawn = draw("cost", records, ["even_odd"])
    assert drawn.data["jtt"] == pytest.approx({"longest": 36, "search": 55})
    assert drawn.data["tab"] == pytest.approx({"longest": 15, "search": 1})
    left, right = axes_of(drawn)
    assert heights(left) == pytest.approx([each["longest"] for each in drawn.data.values()])
    assert heights(right) == pytest.approx([each["search"] for each in drawn.data.values()])


@pytest.mark.parametrize("name", list(FIGURES))
def test_every_figure_becomes_a_file_of_every_kind_and_always_the_same(
    records: list[Record], name: str, tmp_path: Path
) -> None:
    starts = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
    drawn, again = draw(name, records), draw(name, [Record(each.path) for each in records])
    for form, start in starts.items():
        file = drawing.save(drawn, tmp_path / f"figure.{form}")
        assert file.read_bytes().startswith(start)
    assert drawing.encode(again, "svg") == (tmp_path / "figure.svg").read_bytes()


def test_the_readers_own_settings_neither_count_nor_change(records: list[Record]) -> None:
    before = drawing.encode(draw("cost", records), "svg")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert drawing.encode(draw("cost", records), "svg") == before
        assert matplotlib.rcParams["font.size"] == 30


def test_names_that_look_like_formulas_are_drawn_as_they_are(tmp_path: Path) -> None:
    name = r"$\frac{"
    made = [write(tmp_path, m, task="own", spec=f"own {name}", dynamics=curves(5)) for m in ("erm", "tab")]
    for each in (draw(figure, made) for figure in ("validation", "training", "cost")):
        assert drawing.encode(each, "png").startswith(b"\x89PNG") and name in each.title


def test_what_cannot_be_drawn_says_how_to_make_it(tmp_path: Path) -> None:
    made = [write(tmp_path, "erm", PAIR)]
    for name in FIGURES:
        with pytest.raises(ValueError, match=f"evenhand bench even_odd --figure {name}"):
            draw(name, made, ["even_odd"])
        with pytest.raises(
            ValueError, match=f"no runs for the figure '{name}'; make them with: evenhand bench"
        ):
            draw(name, made)
        with pytest.raises(ValueError, match=f"of bar; make them with: evenhand bench bar --figure {name}"):
            draw(name, made, ["bar"])
    photos = [write(tmp_path, "erm", PAIR, task="celeba-size96", spec="celeba:size=96")]
    with pytest.raises(ValueError, match="evenhand bench celeba:size=96 --figure selection"):
        draw("selection", photos)
    with pytest.raises(ValueError, match="evenhand bench even_odd --figure eta"):  # celeba has no p to vary
        draw("eta", photos)
    with pytest.raises(ValueError, match="must end with .svg, .pdf, .png, got"):
        drawing.check_form(Path("a.gif"))


@pytest.mark.parametrize("name", ["validation", "training"])
def test_a_task_without_groups_has_no_dynamics_whatever_is_run(tmp_path: Path, name: str) -> None:
    made = [write(tmp_path, "tab", PAIR, task="bar", groups=False)]
    with pytest.raises(
        ValueError, match=f"the figure '{name}' needs bias-conflicting samples, but bar does not"
    ):
        draw(name, made, ["bar"])
    with pytest.raises(ValueError, match="but bar does not mark any"):
        draw(name, made)


def test_an_unfinished_search_is_said_to_be(tmp_path: Path) -> None:
    made = [write(tmp_path, "lff", {"q": q, **PAIR}) for q in (0.05, 0.1)]
    made += [write(tmp_path, m, PAIR) for m in ("erm", "tab")]
    assert "Unfinished: erm lacks 4 runs, lff lacks 5 runs" in draw("selection", made).caption
    assert "lff lacks 5 runs" in draw("cost", made).caption


def test_the_command_lists_and_draws(records: list[Record], tmp_path: Path) -> None:
    runner = CliRunner()
    listed = runner.invoke(app, ["figure", "--list"])
    assert listed.exit_code == 0 and all(name in listed.stdout for name in FIGURES)
    runs, out = str(records[0].path.parents[2]), tmp_path / "c.svg"
    shown = runner.invoke(app, ["figure", "cost", "--runs", runs, "--task", "even_odd", "-o", str(out)])
    assert shown.exit_code == 0 and out.exists()
    with pytest.raises(ValueError, match="make them with: evenhand bench digits --figure eta"):
        arguments = ["figure", "eta", "--runs", runs, "--task", "digits"]
        runner.invoke(app, arguments, catch_exceptions=False)
    with pytest.raises(ValueError, match="give the name of a figure: validation, selection"):
        runner.invoke(app, ["figure"], catch_exceptions=False)

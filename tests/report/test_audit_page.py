"""The page of an audit as a file: complete, self-contained, inert to hostile data, small, and the same for the same audit."""

import base64
import dataclasses
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_audit import HOSTILE, STRANGE, audit, hostile_audit, picture, samples, write
from parsed_page import Page

from evenhand.report import palette
from evenhand.report import samples as packing
from evenhand.report.page import Audit, Score, Verdict, render_audit
from evenhand.report.samples import Pictures, Rows, Texts

KINDS = ["pictures", "texts", "rows", "none"]


def raw(page: Page, name: str) -> str:
    (content,) = [content for _, attributes, content in page.raw if attributes.get("id") == name]
    return content


def column(page: Page, name: str, dtype: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(raw(page, f"block-{name}")), dtype)


def decoded_ids(page: Page) -> list[str]:
    """As the script decodes them, in a browser's characters of 16 bits."""
    found: list[bytes] = []
    for shared, rest in zip(
        column(page, "shared", "u1").tolist(), json.loads(raw(page, "data"))["ids"], strict=True
    ):
        before = found[-1][: 2 * shared] if shared else b""
        found.append(before + rest.encode("utf-16-le", "surrogatepass"))
    return [each.decode("utf-16-le", "surrogatepass") for each in found]


@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_stands_in_the_page_without_any_script(kind: str) -> None:
    own = audit(kind=kind)
    page = Page(render_audit(own))
    for sentence in (own.headline, *own.lede, own.recommendation, "balanced recommended"):
        assert sentence in page.words
    assert "strong" in page.words and "Retrain on the balanced set." in page.words
    assert "41.2%" in page.words and "86.1%" in page.words and "+44.9" in page.words
    assert "True groups" in page.words and "only for scoring" in page.words
    first = own.samples.labels == 0
    counts = [
        int(np.sum(np.asarray(own.samples.triage)[first] == kind)) for kind in ("minority", "mislabelled")
    ]
    assert f" {int(first.sum())} {counts[0]} {counts[1]} Explore" in page.words


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_fetches_nothing_and_its_policy_lets_nothing_foreign_run(kind: str) -> None:
    page = Page(render_audit(audit(kind=kind)))
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            assert name not in ("style", "srcset", "action", "formaction", "background") and name[:2] != "on"
            if name in ("src", "href"):
                assert value.startswith("#"), (tag, name, value[:40])
    (policy,) = [meta["content"] for meta in page.all("meta") if "http-equiv" in meta]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for tag, attributes, content in page.raw:
        if "type" not in attributes:
            digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            assert f"{tag}-src 'sha256-{digest}'" in policy
    script = raw_script(page)
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "fetch(", "http"):
        assert word not in script


def raw_script(page: Page) -> str:
    (script,) = [content for tag, attributes, content in page.raw if tag == "script" and not attributes]
    return script


@pytest.mark.parametrize("kind", ["pictures", "texts", "rows"])
def test_hostile_names_paths_and_texts_stay_data(kind: str, tmp_path: Path) -> None:
    page = Page(write(tmp_path / "report.html", hostile_audit(kind)).read_text())
    tame = Page(render_audit(audit(samples(4 * len(STRANGE)), kind=kind, baseline_name=HOSTILE)))
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in tame.tags}
    assert {name for _, attributes in page.tags for name in attributes} <= {
        name for _, attributes in tame.tags for name in attributes
    }
    assert raw_script(page) == raw_script(tame)
    assert HOSTILE in page.text  # as words
    for content in (raw(page, "data"), raw(page, "pictures")):
        assert not set(content) & set("<>&\u2028\u2029")


def test_what_the_script_decodes_is_what_was_audited() -> None:
    own = samples(300, ids=[f"{STRANGE[i % len(STRANGE)]}/{i // 7}" for i in range(300)])
    page = Page(render_audit(audit(own)))
    assert decoded_ids(page) == list(own.ids)
    assert column(page, "labels", "<u2").tolist() == own.labels.tolist()
    flags = column(page, "flags", "u1")
    assert (flags & 1).astype(bool).tolist() == own.minority.tolist()
    assert [packing.TRIAGE[each] for each in flags >> 1] == own.triage
    assert column(page, "balanced", "<u2").tolist() == own.predicted_balanced.tolist()
    codes = column(page, "curves", "u1").reshape(own.curves.shape)
    high = json.loads(raw(page, "data"))["high"]
    back = packing.FLOOR * (high / packing.FLOOR) ** (codes / 254)
    np.testing.assert_allclose(back, own.curves.clip(packing.FLOOR), rtol=0.02)


def test_rows_keep_numbers_and_texts() -> None:
    values = [[1.5, np.nan, -2.0], ["b", float("nan"), "a" * 500], [2**40, 1, 2], [True, False, True]]
    own = audit(samples(3, classes=1), kind="none", media=Rows(["x", "y", "big", "yes"], values))
    page = Page(render_audit(own))
    x, y, big, yes = json.loads(raw(page, "data"))["columns"]
    np.testing.assert_array_equal(column(page, x["block"], "<f4"), np.float32([1.5, np.nan, -2.0]))
    texts = [y["texts"][code] for code in column(page, y["block"], "u1")]
    assert texts[:2] == ["b", ""] and len(texts[2]) == packing.CELL_LENGTH
    assert [big["texts"][code] for code in column(page, big["block"], "u1")] == [str(2**40), "1", "2"]
    assert column(page, yes["block"], "<f4").tolist() == [1, 0, 1]


def test_the_same_audit_gives_the_same_bytes(tmp_path: Path) -> None:
    pages = [write(tmp_path / f"{i}.html", audit(kind="rows")).read_bytes() for i in range(2)]
    assert pages[0] == pages[1]


@pytest.mark.parametrize("kind", ["pictures", "texts", "rows"])
def test_a_hundred_thousand_samples_stay_under_40_megabytes(kind: str, tmp_path: Path) -> None:
    """With every limit of the page reached: long paths, 200 epochs, large pictures, texts and cells."""
    n, noise = 100_000, np.random.default_rng(0).bytes(4000)
    own = samples(
        n, 20, 10, ids=[f"some/long/folder/of/{i * 7919 % n:x}/photographs/{i}.jpeg" for i in range(n)]
    )
    own = dataclasses.replace(own, curves=np.tile(own.curves, (1, 10)))
    media = {
        "pictures": Pictures(lambda i: b"\xff\xd8\xff" + noise),
        "texts": Texts(lambda i: "слово и дело " * 40),
        "rows": Rows([str(c) for c in range(60)], [[f"{i}, {c}" * 5 for i in range(n)] for c in (0, 1)] + [np.arange(n) * 0.1] * 58),
    }[kind]  # fmt: skip
    page = write(tmp_path / "report.html", audit(own, kind="none", media=media))
    print(f"{kind}: {page.stat().st_size / 1e6:.1f} MB")
    assert 10e6 < page.stat().st_size < 40e6
    text = page.read_text()
    assert "The plots show 80 of 200 epochs, equally spaced." in text
    if kind == "pictures":
        kept = packing.MOST_PICTURE_BYTES // len(noise)
        assert re.search(rf"It contains pictures of {str(kept)[0]},\d+ samples", text)


def test_samples_worth_looking_at_come_first_and_from_every_class() -> None:
    own = samples(3000, classes=5)
    worth = packing.worth_looking(own)
    assert sorted(worth.tolist()) == list(range(3000))
    triage = np.array(own.triage)
    for kind in ("minority", "mislabelled"):
        first = [i for i in worth[:60] if triage[i] == kind]
        assert set(own.labels[first].tolist()) == set(range(5))
    boundary = [i for i in worth[:200] if triage[i] == "" and own.margin[i] >= -0.5]
    others = np.flatnonzero((triage == "") & (own.margin >= -0.5))
    assert np.abs(own.margin[boundary]).max() < np.median(np.abs(own.margin[others]))


def test_only_the_samples_worth_looking_at_are_kept_of_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MOST_SAMPLES", 200)
    monkeypatch.setattr(packing, "MOST_PICTURES", 50)
    asked: list[int] = []
    own = audit(samples(1000), kind="none", media=Pictures(lambda i: asked.append(i) or picture(i)))
    page = Page(render_audit(own))
    positions = column(page, "positions", "<u4").tolist()
    assert len(positions) == 200 and positions == sorted(set(positions))
    assert decoded_ids(page) == [own.samples.ids[i] for i in positions]
    mislabelled = [i for i, each in enumerate(own.samples.triage) if each == "mislabelled"]
    assert set(mislabelled) <= set(positions)
    assert "The page contains 200 of 1,000 samples" in page.words
    assert "pictures of 50 samples" in page.words and len(asked) == 50
    owners = json.loads(raw(page, "data"))["pictures"]
    assert [positions[each] for each in owners] == asked
    assert len(json.loads(raw(page, "pictures"))) == 50


def test_a_picture_that_cannot_be_read_is_left_out_and_one_of_another_kind_is_refused() -> None:
    page = Page(render_audit(audit(kind="none", media=Pictures(lambda i: picture(i) if i % 2 else None))))
    assert all(each % 2 for each in json.loads(raw(page, "data"))["pictures"])
    with pytest.raises(ValueError, match="must be a PNG, JPEG or WebP file, but it begins with b'<svg"):
        render_audit(audit(kind="none", media=Pictures(lambda i: b"<svg onload=alert(1)>")))


@given(st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=40))
def test_quantised_losses_are_right_within_a_step(losses: list[float]) -> None:
    values = np.array([losses])
    codes, high = packing.quantised(values)
    step = (high / packing.FLOOR) ** (1 / 254)
    back = packing.FLOOR * (high / packing.FLOOR) ** (codes / 254)
    ratio = back / values.clip(packing.FLOOR)
    assert (ratio <= step**0.51).all() and (ratio >= step**-0.51).all()


@settings(max_examples=60)
@given(st.lists(st.text(max_size=12) | st.sampled_from(["a/🙂b", "a/🙂c", "a/🙃c", "a/b"]), min_size=1))
def test_front_coding_can_be_undone_in_a_browsers_characters(ids: list[str]) -> None:
    shared, rests = packing.front_coded(ids)
    before = b""
    for own, length, rest in zip(ids, shared.tolist(), rests, strict=True):
        before = before[: 2 * length] + rest.encode("utf-16-le", "surrogatepass")
        assert before == own.encode("utf-16-le", "surrogatepass")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.zeros(3)}, "labels must hold one value for each of 400 ids, got 3"),
        ({"labels": np.full(400, 7)}, "labels must lie between 0 and 1"),
        ({"curves": np.zeros((400, 0))}, r"curves must have the shape \(400, epochs\)"),
        ({"triage": ["odd"] * 400}, "triage must be one of '', 'minority', 'mislabelled', got 'odd'"),
        ({"ids": []}, "at least one sample"),
    ],
)
def test_samples_that_do_not_fit_are_refused(change: dict, message: str) -> None:
    own = dataclasses.replace(samples(), **change)
    with pytest.raises(ValueError, match=message):
        render_audit(audit(dataclasses.replace(samples()), samples=own))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verdicts": []}, r"verdicts must hold one per class \(2\), got 0"),
        ({"ship": "both"}, "ship must be 'baseline', 'balanced' or '', got 'both'"),
        ({"media": Rows(["a"], [[1, 2]])}, r"rows must hold 400 values for each of their columns, got \[2\]"),
    ],
)
def test_an_audit_that_does_not_fit_is_refused_and_nothing_written(
    change: dict, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "report.html", audit(**change))
    assert not list(tmp_path.iterdir())


def bare(**more: object) -> Audit:
    """As little as an audit can hold."""
    own = samples(1, 1, 1)
    own = dataclasses.replace(own, predicted_baseline=None, predicted_balanced=None)
    verdict = Verdict(strength=0.0, words="none", advice="Leave it.")
    return Audit(title="t", headline="h", samples=own, class_names=["only"], verdicts=[verdict], **more)


@pytest.mark.parametrize("own", [bare(), audit(kind="rows"), audit(samples(200, classes=40))])
def test_the_page_can_be_read_without_seeing_it(own: Audit) -> None:
    page = Page(render_audit(own))
    for landmark in ("header", "nav", "main", "footer"):
        assert len(page.all(landmark)) == 1, landmark
    assert [tag for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)][:3] == ["h1", "h2", "h3"]
    assert all(cell.get("scope") in ("col", "row") for cell in page.all("th"))
    assert all(svg.get("aria-hidden") == "true" for svg in page.all("svg"))
    identifiers = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    for link in page.all("a"):
        assert link["href"].removeprefix("#") in identifiers
    named = [a[name] for _, a in page.tags for name in ("aria-labelledby", "aria-describedby") if name in a]
    assert named and set(named) <= set(identifiers)
    (live,) = page.all("p", role="status")
    assert live["aria-live"] == "polite"


def contrast(first: str, second: str) -> float:
    low, high = sorted(_luminance(each) for each in (first, second))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_and_every_mark_has_contrast(theme: str) -> None:
    """WCAG AA: 4.5 to 1 for text, 3 to 1 for what is drawn."""
    colours = palette.THEMES[theme]
    pairs = [
        (ink, ground)
        for ink in ("ink", "soft", "accent", "majority", "minority")
        for ground in ("paper", "wash")
    ]
    pairs += [("paper", name) for name in ("accent", "minority", "majority", "wrong", "ink")]
    for text, ground in pairs:
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for look in (*palette.METHODS.values(), *palette.OTHERS):
        assert contrast(getattr(look, theme), colours["paper"]) >= 3, look


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_meter_is_empty_where_there_is_no_evidence() -> None:
    verdicts = [
        Verdict(strength=strength, words="weak", advice="Look.", threshold=0.9, nothing=0.6)
        for strength in (0.5, 0.8)
    ]
    page = render_audit(audit(verdicts=verdicts))
    assert re.findall(r'class="part" width="([\d.]+)"', page) == ["32.0", "0.0"]  # of 64, strongest first
    assert set(re.findall(r'class="needed" x="([\d.]+)"', page)) == {"47.0"}
    assert "0.80 of 1, threshold 0.90" in Page(page).words


def test_the_worst_of_many_groups_come_first_and_the_others_unfold() -> None:
    groups = [Score(name=f"group {i}", baseline=(i * 7 % 20) / 20, balanced=0.5) for i in range(20)]
    page = Page(render_audit(audit(groups=groups)))
    places = [page.words.index(f"{each.name} ") for each in sorted(groups, key=lambda each: each.baseline)]
    assert places == sorted(places)
    assert (
        places[11]
        < page.words.index("8 more groups, in which the model as collected does no worse")
        < places[12]
    )
    few = Page(render_audit(audit(groups=groups[:12]))).words
    places = [few.index(f"group {i} ") for i in range(12)]
    assert places == sorted(places) and "more groups" not in few


def test_rows_that_stand_for_several_groups_never_unfold() -> None:
    groups = [Score(name=f"group {i}", baseline=0.1, balanced=0.5) for i in range(20)]
    groups.append(Score(name="all of them", baseline=0.9, balanced=0.9, note="all classes"))
    page = Page(render_audit(audit(groups=groups)))
    assert page.words.index("all of them ") < page.words.index("group 0 ")

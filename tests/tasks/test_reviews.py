"""Reviews: a shortcut of domains by subsampling, read from a Parquet file."""

from __future__ import annotations

import numpy as np
import published_layouts as layouts
import pytest
import torch
from published_layouts import REAL_ROOT

from evenhand import tasks
from evenhand.tasks import reviews
from evenhand.tasks.samples import TEST, TRAIN, VAL

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")


def cells(data, part: int) -> list[int]:
    return np.bincount(data.group[data.rows(part)], minlength=8).tolist()


def test_a_share_p_of_each_class_comes_from_its_domains(tmp_path):
    layouts.make_reviews(tmp_path)
    data = reviews.listing(tmp_path, p=0.8)
    # Negative goes with electronics and kitchen, positive with books and dvd.
    assert cells(data, TRAIN) == [8, 8, 32, 32, 32, 32, 8, 8]
    assert cells(data, VAL) == [2, 2, 8, 8, 8, 8, 2, 2]
    assert cells(data, TEST) == [10] * 8
    assert data.conflicting == {0, 1, 6, 7} and data.group_names[6] == "positive, electronics"
    assert cells(reviews.listing(tmp_path, p=0.5), TRAIN) == [32] * 8


def test_texts_labels_and_domains_belong_together(tmp_path):
    layouts.make_reviews(tmp_path)
    data = reviews.listing(tmp_path, domains="dvd+electronics")
    for text, y, domain in zip(data.texts, data.y, data.attribute, strict=True):
        assert ("good" in text) == y and ("dvd" in text) == (domain == 0)
    assert data.attribute_names == ("dvd", "electronics") and data.conflicting == {0, 3}


def test_a_larger_p_only_leaves_reviews_out(tmp_path):
    layouts.make_reviews(tmp_path)
    few, many = (reviews.listing(tmp_path, p=p) for p in (0.95, 0.6))
    for part in (TRAIN, VAL, TEST):
        kept, all_of = ({data.ids[row] for row in data.rows(part)} for data in (few, many))
        assert kept <= all_of and (part == TEST or len(kept) < len(all_of))


def test_words_and_embeddings_are_inputs(tmp_path):
    folder = layouts.make_reviews(tmp_path)
    task = tasks.load("reviews:p=0.9", tmp_path)
    assert task.name == "reviews-p0.9" and task.train.x.dtype == torch.float32
    shares = [np.bincount(split.group, minlength=8) / len(split) for split in (task.train, task.test)]
    restated = np.bincount(task.test.group, task.test.weight, 8) / len(task.test)
    assert np.allclose(restated, shares[0]) and not np.allclose(restated, shares[1])
    rows = len(pandas.read_parquet(folder / "reviews.parquet"))
    np.save(folder / "rows.npy", np.arange(rows, dtype=np.float16)[:, None])
    embedded = tasks.load("reviews:p=0.9,embeddings=rows.npy", tmp_path)
    ids = reviews.listing(tmp_path, p=0.9).ids
    assert embedded.train.x[:, 0].tolist() == [float(each) for each in ids]
    assert torch.equal(embedded.train.y, task.train.y) and embedded.checksum != task.checksum


def test_mistakes_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"reviews needs .*reviews\.parquet, which is not there"):
        reviews.listing(tmp_path)
    folder = layouts.make_reviews(tmp_path)
    for domains in ("books", "books+books", "books+cars"):
        with pytest.raises(
            ValueError, match="an even number of different domains.*known domains are books, dvd"
        ):
            reviews.listing(tmp_path, domains=domains)
    with pytest.raises(ValueError, match=r"p must be at least 0\.5 and below 1, got 1"):
        reviews.listing(tmp_path, p=1.0)
    pandas.DataFrame({"text": ["a"], "domain": ["books"]}).to_parquet(folder / "reviews.parquet")
    with pytest.raises(ValueError, match="but has no positive, split"):
        reviews.listing(tmp_path)


@pytest.mark.skipif(not (REAL_ROOT / "reviews").is_dir(), reason="the reviews are not here")
def test_the_real_reviews_have_the_described_cells():
    data = reviews.listing(REAL_ROOT)
    assert len(set(cells(data, TRAIN))) == 2 and min(cells(data, TEST)) > 150
    share = np.isin(data.group[data.rows(TRAIN)], sorted(data.conflicting)).mean()
    assert share == pytest.approx(0.05, abs=0.002)

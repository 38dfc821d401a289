"""Waterbirds, CelebA, BAR, PACS and CUB from folders in their published layouts, and what can be wrong there."""

from __future__ import annotations

import os
import pickle
import shutil
import tarfile
import zipfile

import numpy as np
import published_layouts as layouts
import pytest
import torch
from PIL import Image
from published_layouts import REAL_ROOT

from evenhand import tasks
from evenhand.report.catalog import facts_of_data, read_split
from evenhand.tasks import celeba, datasets, pacs
from evenhand.tasks.samples import Samples, rare_cells
from evenhand.training.data import training_weights

MAKERS = {
    "waterbirds": layouts.make_waterbirds,
    "celeba": layouts.make_celeba,
    "bar": layouts.make_bar,
    "pacs": layouts.make_pacs,
    "cub": layouts.make_cub,
}

ALIGNED, TESTED = pacs.ALIGNED, pacs.TESTED


@pytest.fixture(autouse=True)
def small_pacs(monkeypatch):
    """Few images of PACS, so that a made folder suffices."""
    monkeypatch.setattr(pacs, "ALIGNED", {0: 20, 3: 24})
    monkeypatch.setattr(pacs, "TESTED", 4)


def load(name, root, **options):
    return tasks.load(
        ",".join([f"{name}:size=8", *(f"{key}={value}" for key, value in options.items())]), root
    )


def edit(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_waterbirds_groups_splits_and_weights(tmp_path):
    layouts.make_waterbirds(tmp_path)
    task = load("waterbirds", tmp_path)
    assert [torch.bincount(split.group).tolist() for split in (task.train, task.val, task.test)] == [
        [14, 2, 1, 3],
        [3, 3, 2, 2],
        [4, 4, 3, 3],
    ]
    assert task.class_names == ("landbird", "waterbird")
    assert task.group_names == ("landbird, land", "landbird, water", "waterbird, land", "waterbird, water")
    assert task.conflicting == {1, 2}
    for split in (task.val, task.test):
        assert torch.equal(split.weight, training_weights(task.train.group, split.group, 4))
    assert task.train.weight is None


@pytest.mark.parametrize("kind", ["txt", "csv"])
def test_celeba_groups_and_splits(tmp_path, kind):
    layouts.make_celeba(tmp_path, kind)
    task = load("celeba", tmp_path)
    expected = [
        [(i % 4 == 0) * 2 + (i % 3 == 0) for i in part] for part in (range(40), range(40, 50), range(50, 60))
    ]
    assert [split.group.tolist() for split in (task.train, task.val, task.test)] == expected
    assert task.group_names[3] == "blond, male" and task.conflicting == {3}
    assert task.test.weight is None and task.val.weight is None


def test_celeba_fraction_takes_a_share_of_train_and_val_only(tmp_path, monkeypatch):
    layouts.make_celeba(tmp_path)
    task = tasks.load("celeba:fraction=0.5,size=8", tmp_path)
    assert (len(task.train), len(task.val), len(task.test)) == (20, 5, 10)
    assert task.name == "celeba-fraction0.5-size8"
    assert torch.equal(task.train.rows, tasks.load("celeba:fraction=0.5,size=8", tmp_path).train.rows)
    monkeypatch.setattr(celeba, "FULL_SIZE", 60)  # what counts as the full set gets the paper's 15 %
    task = tasks.load("celeba:size=8", tmp_path)
    assert (len(task.train), len(task.val), len(task.test)) == (6, 2, 10)
    with pytest.raises(ValueError, match=r"fraction must be above 0 and at most 1, got 2\.0"):
        tasks.load("celeba:fraction=2.0,size=8", tmp_path)


def test_celeba_with_another_target_and_attribute(tmp_path):
    folder = layouts.make_celeba(tmp_path)
    file = folder / "list_attr_celeba.txt"
    lines = file.read_text().splitlines()
    for i in range(60):  # young: i % 4 == 1, so that no young face is blond
        lines[i + 2] = lines[i + 2].rsplit(" ", 1)[0] + (" 1" if i % 4 == 1 else " -1")
    file.write_text("\n".join(lines) + "\n")
    task = load("celeba", tmp_path, target="Young", attribute="Blond_Hair")
    assert task.class_names == ("not young", "young") and task.group_names[1] == "not young, blond"
    assert task.train.group.tolist() == [2 * (i % 4 == 1) + (i % 4 == 0) for i in range(40)]
    assert task.conflicting == {3}, "no young face is blond"
    assert task.name == "celeba-size8-targetYoung-attributeBlond_Hair"
    same = load("celeba", tmp_path, target="Blond_Hair", attribute="Male")
    default = load("celeba", tmp_path)
    assert (same.name, same.checksum, same.spec) == (default.name, default.checksum, default.spec)
    assert load("celeba", tmp_path, target="Male", attribute="Blond_Hair").conflicting != frozenset()
    with pytest.raises(ValueError, match="has no Tall; it has Attractive, Blond_Hair, Male, Young"):
        load("celeba", tmp_path, target="Tall")
    with pytest.raises(ValueError, match="two of CelebA's attributes, got 'Male' twice"):
        load("celeba", tmp_path, target="Male")


@pytest.mark.parametrize(
    "cells, conflicting",
    [
        ([[10256, 10680], [3262, 218]], {3}),  # blond men
        ([[12208, 6513], [1310, 4385]], {2}),  # women with a big nose
        ([[3012, 10841], [10506, 57]], {0, 3}),  # women without lipstick, men with it
        ([[25, 25], [26, 24]], {3}),  # nearly independent: the one that falls shortest
    ],
)
def test_conflicting_cells_follow_from_the_counts(cells, conflicting):
    counts = np.array(cells).ravel()
    y, attribute = np.repeat([0, 0, 1, 1], counts), np.repeat([0, 1, 0, 1], counts)
    data = Samples(y=y, class_names=("a", "b"), split=0 * y, attribute=attribute, attribute_names=("c", "d"))
    assert rare_cells(data) == conflicting


def test_bar_classes_and_splits(tmp_path):
    layouts.make_bar(tmp_path)
    (tmp_path / "bar" / "train" / "Thumbs.db").write_text("not an image")
    task = load("bar", tmp_path)
    assert (len(task.train), len(task.val), len(task.test)) == (48, 12, 18)
    assert task.class_names[3] == "pole vaulting" and torch.bincount(task.test.y).tolist() == [3] * 6
    assert task.train.group is None and task.group_names == ()
    assert torch.bincount(torch.cat([task.train.y, task.val.y])).tolist() == [10] * 6


def groups_of(listing):
    return [np.bincount(listing.group[listing.rows(part)], minlength=4).tolist() for part in range(3)]


def test_pacs_groups_splits_and_weights(tmp_path):
    layouts.make_pacs(tmp_path)
    task = tasks.load("pacs:p=0.8,size=8", tmp_path)
    splits = (task.train, task.val, task.test)
    # Of each class a fifth conflicts: 5 drawn others to 20 natural ones, 6 natural animals to 24 drawn ones.
    assert [torch.bincount(split.group).tolist() for split in splits] == [
        [20, 5, 6, 24],
        [5, 1, 2, 6],
        [4, 4, 4, 4],
    ]
    assert task.group_names == ("other, natural", "other, drawn", "animal, natural", "animal, drawn")
    assert task.conflicting == {1, 2} and task.name == "pacs-p0.8-size8"
    assert torch.equal(task.test.weight, training_weights(task.train.group, task.test.group, 4))
    assert task.val.weight is None, "validation has the proportions of training already"


def test_pacs_knows_which_objects_are_animals_and_which_styles_are_drawn(tmp_path):
    layouts.make_pacs(tmp_path)
    listing = pacs.listing(tmp_path)
    objects = [file.parent.name for file in listing.files]
    styles = [file.parent.parent.name for file in listing.files]
    animals = {"dog", "elephant", "giraffe", "horse"}  # a person is none
    assert listing.y.tolist() == [int(name in animals) for name in objects]
    assert listing.attribute.tolist() == [int(style in ("cartoon", "sketch")) for style in styles]
    assert set(objects) == animals | {"guitar", "house", "person"} and len(set(styles)) == 4


def test_a_larger_p_of_pacs_only_leaves_images_out(tmp_path):
    layouts.make_pacs(tmp_path)
    few, many = (pacs.listing(tmp_path, p=p) for p in (0.9, 0.7))
    for part in range(3):
        kept = {few.files[row] for row in few.rows(part)}
        assert kept < {many.files[row] for row in many.rows(part)} or part == 2
    assert [few.files[row] for row in few.rows(2)] == [many.files[row] for row in many.rows(2)]


def test_pacs_mistakes(tmp_path):
    folder = layouts.make_pacs(tmp_path)
    for p in (0.4, 1.0):
        with pytest.raises(ValueError, match=f"p must be at least 0.5 and below 1, got {p}"):
            pacs.listing(tmp_path, p=p)
    for file in (folder / "sketch" / "guitar").glob("*"):
        file.unlink()
    with pytest.raises(ValueError, match="p=0.5 needs 29 images of 'other, drawn', but there are 25"):
        pacs.listing(tmp_path, p=0.5)
    (folder / "sketch" / "guitar").rmdir()
    with pytest.raises(ValueError, match=r"pacs needs .*sketch/guitar, which is not there"):
        load("pacs", tmp_path)


@pytest.mark.parametrize("splits", [True, False])
def test_cub_splits_of_concept_bottlenecks_or_its_own_lists(tmp_path, splits):
    layouts.make_cub(tmp_path, splits=splits)
    task = load("cub", tmp_path)
    sizes = (len(task.train), len(task.val), len(task.test))
    assert sizes == ((15, 3, 11) if splits else (15, 3, 12))
    assert task.class_names == ("Auk", "Blue_Jay", "Crow")
    if splits:
        assert task.val.rows.tolist() == [0, 1, 2]
    assert task.train.y.tolist() == [row % 3 for row in task.train.rows.tolist()]


@pytest.mark.parametrize("name", MAKERS)
def test_labels_belong_to_their_images_and_no_image_is_in_two_splits(tmp_path, name):
    MAKERS[name](tmp_path)
    module = tasks.module(name)
    listing = module.listing(tmp_path)
    task = load(name, tmp_path)
    rows = torch.cat([split.rows for split in (task.train, task.val, task.test)])
    assert sorted(rows.tolist()) == list(range(len(listing.files)))
    for split in (task.train, task.val, task.test):
        assert split.y.tolist() == listing.y[split.rows.numpy()].tolist()
        for row in split.rows.tolist()[:3]:
            colour = np.asarray(Image.open(listing.files[row]).convert("RGB"))[0, 0]
            assert np.abs(np.asarray(split.x[row])[:, 4, 4].astype(int) - colour).max() <= 3
    assert task.mean is not None and task.augment is not None
    assert tasks.load(task.spec, tmp_path).checksum == task.checksum


@pytest.mark.parametrize("name", MAKERS)
def test_the_augmented_batch_keeps_its_shape(tmp_path, name):
    MAKERS[name](tmp_path)
    task = load(name, tmp_path)
    x = torch.from_numpy(np.array(task.train.x[:4])).float() / 255
    warped = task.augment(x, torch.Generator().manual_seed(0))
    assert warped.shape == x.shape and warped.min() >= 0 and warped.max() <= 1.001


@pytest.mark.parametrize("name", MAKERS)
def test_a_missing_image_is_named(tmp_path, name):
    MAKERS[name](tmp_path)
    listing = tasks.module(name).listing(tmp_path)
    if name in ("bar", "pacs"):
        pytest.skip("it has no list: its images are what its folders hold")
    listing.files[7].unlink()
    with pytest.raises(
        ValueError, match=f"{name} needs .* images, but 1 are missing, .*{listing.files[7].name}"
    ):
        load(name, tmp_path)


@pytest.mark.parametrize("name", MAKERS)
def test_a_truncated_image_is_named(tmp_path, name):
    MAKERS[name](tmp_path)
    listing = tasks.module(name).listing(tmp_path)
    file = listing.files[5]
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(ValueError, match=f"{file.name} cannot be decoded .*fetch it again"):
        load(name, tmp_path)


@pytest.mark.parametrize("name", MAKERS)
def test_absent_data_say_how_to_get_them(tmp_path, name):
    with pytest.raises(ValueError, match=f"{name} needs .* which is not there; `evenhand data fetch {name}`"):
        load(name, tmp_path)


def test_waterbirds_mistakes(tmp_path):
    folder = layouts.make_waterbirds(tmp_path)
    file = folder / "metadata.csv"
    whole = file.read_text()
    edit(file, "Bird_0003.jpg,0,0", "Bird_0003.jpg,2,0")
    with pytest.raises(ValueError, match=r"metadata.csv, line 5: y must be one of 0, 1, got '2'"):
        load("waterbirds", tmp_path)
    file.write_text(whole.replace("Bird_0003.jpg,0,0", "Bird_0003.jpg,0,3"))
    with pytest.raises(ValueError, match=r"metadata.csv, line 5: split must be one of 0, 1, 2, got '3'"):
        load("waterbirds", tmp_path)
    file.write_text(whole.replace("img_filename", "file"))
    with pytest.raises(
        ValueError, match=r"must have the columns img_filename, y, split, place, but has no img_f"
    ):
        load("waterbirds", tmp_path)


def test_an_empty_class_or_split_is_an_error(tmp_path):
    layouts.make_waterbirds(tmp_path, {0: (5, 5, 0, 0), 1: (1, 1, 1, 1), 2: (1, 1, 1, 1)})
    with pytest.raises(ValueError, match="the training split of waterbirds has no image of waterbird"):
        load("waterbirds", tmp_path)
    layouts.make_waterbirds(tmp_path, {0: (5, 5, 5, 5), 1: (1, 1, 1, 1)})
    with pytest.raises(ValueError, match="the test split of waterbirds is empty"):
        load("waterbirds", tmp_path)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("list_attr_celeba.txt", "60\n", "61\n", "must begin with its number of images, 60, got '61'"),
        (
            "list_attr_celeba.txt",
            "Blond_Hair",
            "Hair",
            "must have the columns Blond_Hair, Male, but has no Blond_Hair",
        ),
        (
            "list_attr_celeba.txt",
            "000003.jpg 1 -1",
            "000003.jpg 1 0",
            "line 5: Blond_Hair must be one of -1, 1, got '0'",
        ),
        ("list_attr_celeba.txt", "000003.jpg 1 -1", "000003.jpg 1", "line 5: expected 5 fields, got 4"),
        (
            "list_eval_partition.txt",
            "000004.jpg 0",
            "000004.jpg 7",
            "line 4: partition must be one of 0, 1, 2, got '7'",
        ),
        ("list_eval_partition.txt", "000004.jpg", "x.jpg", "000004.jpg is not in .*list_eval_partition.txt"),
    ],
)
def test_celeba_mistakes(tmp_path, file, old, new, message):
    edit(layouts.make_celeba(tmp_path) / file, old, new)
    with pytest.raises(ValueError, match=message):
        load("celeba", tmp_path)


def test_celeba_without_a_list_is_an_error(tmp_path):
    (layouts.make_celeba(tmp_path) / "list_eval_partition.txt").unlink()
    with pytest.raises(ValueError, match=r"celeba needs .*list_eval_partition.txt, which is not there"):
        load("celeba", tmp_path)


def test_bar_mistakes(tmp_path):
    folder = layouts.make_bar(tmp_path)
    layouts.picture(folder / "train" / "vaulting_1.jpg", 1)
    with pytest.raises(
        ValueError, match=r"vaulting_1.jpg: the name before .* pole vaulting, .*got 'vaulting'"
    ):
        load("bar", tmp_path)
    (folder / "train" / "vaulting_1.jpg").unlink()
    for file in (folder / "train").glob("racing_*"):
        file.unlink()
    with pytest.raises(ValueError, match="the training split of bar has no image of racing"):
        load("bar", tmp_path)
    (folder / "test").rename(folder / "tests")
    with pytest.raises(ValueError, match=r"bar needs .*test, which is not there"):
        load("bar", tmp_path)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("image_class_labels.txt", "5 2\n", "5 9\n", "image 5 must have one of the 3 classes .*got '9'"),
        ("train_test_split.txt", "5 1\n", "5 2\n", r"must say 0 \(test\) or 1 \(training\).*got '2'"),
        (
            "images.txt",
            "5 002.Blue_Jay/Blue_Jay_0004.jpg",
            "5",
            "images.txt, line 5: expected 2 fields, got 1",
        ),
    ],
)
def test_cub_mistakes(tmp_path, file, old, new, message):
    edit(layouts.make_cub(tmp_path) / file, old, new)
    with pytest.raises(ValueError, match=message):
        load("cub", tmp_path)


def test_cub_without_a_list_or_a_split_file_is_an_error(tmp_path):
    folder = layouts.make_cub(tmp_path, splits=True)
    (folder.parent / "class_attr_data_10" / "val.pkl").unlink()
    with pytest.raises(ValueError, match=r"cub needs .*val.pkl, which is not there"):
        load("cub", tmp_path)
    (folder / "classes.txt").unlink()
    with pytest.raises(ValueError, match=r"cub needs .*classes.txt, which is not there"):
        load("cub", tmp_path)


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_a_hostile_split_file_runs_nothing(tmp_path, monkeypatch):
    folder = layouts.make_cub(tmp_path, splits=True)
    monkeypatch.chdir(tmp_path)
    (folder.parent / "class_attr_data_10" / "val.pkl").write_bytes(pickle.dumps([Hostile()]))
    with pytest.raises(ValueError, match=r"val.pkl must be a list of records with img_path"):
        load("cub", tmp_path)
    assert not (tmp_path / "executed").exists()


def pack(folder, archive, inside):
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as zipped:
            for file in sorted(folder.rglob("*")):
                zipped.write(file, f"{inside}/{file.relative_to(folder)}")
    else:
        with tarfile.open(archive, "w:gz" if archive.suffix != ".tar" else "w") as tar:
            tar.add(folder, inside)


@pytest.mark.parametrize(
    ("name", "packed", "archive", "inside"),
    [
        ("bar", "bar", "bar256.tar", "bar"),
        ("bar", "bar", "BAR.zip", "BAR-main"),
        ("pacs", "pacs", "pacs128.tar", "pacs"),
        ("pacs", "pacs", "PACS.zip", "PACS/kfold"),
        ("celeba", "celeba/img_align_celeba", "img_align_celeba.zip", "img_align_celeba"),
        ("celeba", "celeba/img_align_celeba", "part.tar", "celeba/img_align_celeba"),
        ("waterbirds", "waterbirds", "birds.tar.gz", "waterbird_complete95_forest2water2"),
        ("cub", "cub/CUB_200_2011", "CUB_200_2011.tgz", "CUB_200_2011"),
    ],
)
def test_archives_unpack_into_the_cache_and_load_alike(tmp_path, name, packed, archive, inside):
    plain, zipped = tmp_path / "plain", tmp_path / "zipped"
    MAKERS[name](plain)
    MAKERS[name](zipped)
    target = tmp_path / archive
    pack(zipped / packed, target, inside)
    shutil.rmtree(zipped / packed)
    (zipped / name).mkdir(exist_ok=True)
    target.rename(zipped / name / archive)
    before = sorted((zipped / name).rglob("*"))
    assert load(name, zipped).checksum == load(name, plain).checksum
    assert sorted((zipped / name).rglob("*")) == before, "the data root stays as it was"


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_an_archive_that_reaches_out_is_refused_whole(tmp_path, kind):
    folder = tmp_path / "bar"
    folder.mkdir()
    inside = tmp_path / "x.jpg"
    layouts.picture(inside, 0)
    if kind == "tar":
        with tarfile.open(folder / "bar.tar", "w") as tar:
            tar.add(inside, "train/climbing_1.jpg")
            tar.add(inside, "../../../escaped.jpg")
    else:
        with zipfile.ZipFile(folder / "bar.zip", "w") as zipped:
            zipped.write(inside, "train/climbing_1.jpg")
            zipped.write(inside, "../../../escaped.jpg")
    with pytest.raises(ValueError, match=r"holds an unsafe entry .*nothing was unpacked"):
        load("bar", tmp_path)
    assert not list(tmp_path.rglob("escaped.jpg")) and not list((tmp_path / "cache").rglob("*.jpg"))


def test_a_damaged_archive_is_named_and_leaves_nothing(tmp_path):
    layouts.make_bar(tmp_path / "made")
    (tmp_path / "bar").mkdir()
    archive = tmp_path / "bar" / "bar.tar"
    pack(tmp_path / "made" / "bar", archive, "bar")
    archive.write_bytes(archive.read_bytes()[:20_000])
    with pytest.raises(ValueError, match=r"bar.tar cannot be unpacked .*fetch it again"):
        load("bar", tmp_path)
    assert not list((tmp_path / "cache").rglob("*.jpg"))


@pytest.mark.skipif(not (REAL_ROOT / "bar").is_dir(), reason="BAR is not here")
def test_real_bar_has_the_papers_sizes():
    listing = tasks.module("bar").listing(REAL_ROOT)
    assert np.bincount(listing.split).tolist() == [1552, 389, 654]
    assert np.bincount(listing.y[listing.split != 2]).tolist() == [326, 520, 163, 279, 336, 317]


@pytest.mark.skipif(not (REAL_ROOT / "pacs").is_dir(), reason="PACS is not here")
def test_real_pacs_has_the_described_groups(monkeypatch):
    monkeypatch.setattr(pacs, "ALIGNED", ALIGNED)
    monkeypatch.setattr(pacs, "TESTED", TESTED)
    assert groups_of(pacs.listing(REAL_ROOT)) == [
        [1100, 58, 126, 2400],
        [275, 14, 32, 600],
        [400, 400, 400, 400],
    ]
    assert groups_of(pacs.listing(REAL_ROOT, p=0.99))[0] == [1100, 11, 24, 2400]
    assert groups_of(pacs.listing(REAL_ROOT, p=0.67))[0] == [1100, 542, 1182, 2400]
    with pytest.raises(
        ValueError, match=r"p=0.66 needs 1,945 images of 'animal, natural', but there are 1,892"
    ):
        pacs.listing(REAL_ROOT, p=0.66)


@pytest.mark.skipif(not (REAL_ROOT / "celeba").is_dir(), reason="CelebA is not here")
def test_real_celeba_lists_have_the_known_groups(monkeypatch):
    monkeypatch.setattr(datasets, "find_folder", lambda task, where, root, name: REAL_ROOT)  # opens no image
    listing = tasks.module("celeba").listing(REAL_ROOT)
    train = listing.split == 0
    groups = np.bincount(listing.y[train] * 2 + listing.attribute[train])
    assert train.sum() == 24_416 and groups.min() == groups[3] == 218


@pytest.mark.parametrize("name", MAKERS)
def test_the_lists_alone_say_what_the_task_has(tmp_path, name):
    MAKERS[name](tmp_path)
    task = tasks.load(f"{name}:size=32", tmp_path)
    facts = facts_of_data(f"{name}:size=32", tmp_path)
    assert facts["N"] == len(task.train) and facts["L"] == task.num_classes
    assert tuple(facts["shape"]) == tuple(task.train.x[0].shape)
    if task.conflicting:
        share = np.isin(task.train.group, sorted(task.conflicting)).mean()
        assert facts["conflicting"] == pytest.approx(share) and share > 0
    truth = read_split(f"{name}:size=32", tmp_path, "test")
    assert truth is not None and truth.labels.tolist() == task.test.y.tolist()

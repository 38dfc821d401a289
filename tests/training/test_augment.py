"""Warps of a batch against torchvision's operations on single images, and the numbers that are drawn."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand.training.augment import ETA, Warp

functional = pytest.importorskip("torchvision.transforms.v2.functional")
BILINEAR = pytest.importorskip("torchvision.transforms").InterpolationMode.BILINEAR

COLUMNS = ("left", "top", "width", "height", "zoom", "mirror", "angle", "right", "down", "sigma")
IDENTITY = {"width": 1.0, "height": 1.0, "zoom": 1.0, "mirror": 1.0, "sigma": 1.0}


def params(**values: float) -> torch.Tensor:
    return torch.tensor([[{**IDENTITY, **values}.get(name, 0.0) for name in COLUMNS]])


def images(height: int = 24, width: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(1, 3, height, width, generator=generator)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("left", "top", "width", "height"), [(4, 3, 16, 18), (0, 0, 32, 12), (8, 12, 24, 12)]
)
def test_crop_is_torchvisions_resized_crop(left, top, width, height):
    x = images()
    drawn = params(left=left / 32, top=top / 24, width=width / 32, height=height / 24)
    ours = Warp(crop=(0.1, 1.0)).apply(x, drawn)
    theirs = functional.resized_crop(x, top, left, height, width, [24, 32], BILINEAR, antialias=False)
    # torchvision repeats the crop's outermost pixels, we see the image go on: two pixels differ on each side.
    torch.testing.assert_close(ours[..., 2:-2, 2:-2], theirs[..., 2:-2, 2:-2], atol=1e-5, rtol=0)


def test_whole_image_crop_changes_nothing_up_to_the_edge():
    torch.testing.assert_close(Warp(crop=(0.1, 1.0)).apply(images(), params()), images(), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "warp", [Warp(flip=True), Warp(flip=True, crop=(0.1, 1.0)), Warp(flip=True, rotate=5)]
)
def test_flip_is_torchvisions_horizontal_flip(warp):
    theirs = functional.horizontal_flip(images())
    torch.testing.assert_close(warp.apply(images(), params(mirror=-1.0)), theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("angle", [-30.0, -7.5, 12.0, 90.0])
@pytest.mark.parametrize("shape", [(24, 24), (24, 32), (33, 20)])
def test_rotation_is_torchvisions_rotate(angle, shape):
    x = images(*shape)
    ours = Warp(rotate=90.0).apply(x, params(angle=math.radians(angle)))
    torch.testing.assert_close(ours, functional.rotate(x, angle, BILINEAR), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("right", "down"), [(3, 0), (0, 2), (3, 2), (-4, 1)])
def test_translation_is_torchvisions_affine(right, down):
    ours = Warp(translate=(-1.0, 1.0)).apply(images(), params(right=right / 32, down=down / 24))
    theirs = functional.affine(images(), 0.0, [right, down], 1.0, [0.0, 0.0], BILINEAR)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("zoom", [0.8, 1.0, 1.3])
def test_rotation_zoom_and_translation_together_are_torchvisions_affine(zoom):
    drawn = params(angle=math.radians(20.0), zoom=zoom, right=3 / 32, down=2 / 24)
    ours = Warp(rotate=30.0, scale=(0.5, 2.0), translate=(0.0, 0.2)).apply(images(), drawn)
    # torchvision's affine counts angles clockwise, its rotate counter-clockwise.
    theirs = functional.affine(images(), -20.0, [3, 2], zoom, [0.0, 0.0], BILINEAR)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_crop_comes_before_flip_and_flip_before_rotation():
    x = torch.nn.functional.interpolate(
        images(6, 8), size=(96, 128), mode="bicubic"
    )  # smooth, as resampled twice
    shares = {"left": 16 / 128, "top": 12 / 96, "width": 64 / 128, "height": 72 / 96}
    ours = Warp(crop=(0.1, 1.0), flip=True, rotate=30.0).apply(
        x, params(**shares, mirror=-1.0, angle=math.radians(15.0))
    )
    cropped = functional.resized_crop(x, 12, 16, 72, 64, [96, 128], BILINEAR, antialias=False)
    theirs = functional.rotate(functional.horizontal_flip(cropped), 15.0, BILINEAR)
    swapped = functional.horizontal_flip(functional.rotate(cropped, 15.0, BILINEAR))
    torch.testing.assert_close(ours[..., 30:-30, 30:-30], theirs[..., 30:-30, 30:-30], atol=0.01, rtol=0)
    assert (ours - swapped)[..., 30:-30, 30:-30].abs().max() > 0.1


@pytest.mark.parametrize("sigma", [0.1, 1.1, 2.0])
def test_blur_is_torchvisions_gaussian_blur(sigma):
    ours = Warp(blur=(0.1, 2.0)).apply(images(), params(sigma=sigma))
    theirs = functional.gaussian_blur(images(), [5, 5], [sigma, sigma])
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_every_sample_of_a_batch_gets_its_own_warp():
    x = images().repeat(5, 1, 1, 1)
    warp = Warp(
        crop=(0.5, 1.0), flip=True, scale=(0.9, 1.1), rotate=20.0, translate=(0.0, 0.1), blur=(0.1, 2.0)
    )
    drawn = warp.sample(5, generator())
    together = warp.apply(x, drawn)
    for row in range(5):
        alone = warp.apply(x[row : row + 1], drawn[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, atol=1e-6, rtol=0)
    assert len({round(float(image.sum()), 3) for image in together}) == 5


def test_only_the_generator_decides():
    x = images().repeat(3, 1, 1, 1)
    torch.manual_seed(1)
    first = ETA(x, generator())
    torch.manual_seed(2)
    assert torch.equal(first, ETA(x, generator()))
    assert not torch.equal(first, ETA(x, generator(1)))
    assert torch.equal(first, ETA.apply(x, ETA.sample(3, generator())))


def test_eta_draws_what_the_paper_says():
    drawn = dict(zip(COLUMNS, ETA.sample(4000, generator()).unbind(1), strict=True))
    degrees = drawn["angle"].rad2deg()
    assert -30 <= degrees.min() < -29 and 29 < degrees.max() <= 30 and abs(degrees.mean()) < 1
    for axis in ("right", "down"):
        assert drawn[axis].min() >= 0 and drawn[axis].max() <= 0.1, "the shift is one-sided"
        assert abs(drawn[axis].mean() - 0.05) < 0.002
    assert abs(torch.corrcoef(torch.stack([drawn["right"], drawn["down"]]))[0, 1]) < 0.05
    for name, value in IDENTITY.items():
        assert name == "sigma" or (drawn[name] == value).all()


@settings(max_examples=25)
@given(low=st.floats(0.05, 1.0), spread=st.floats(0.0, 1.0), seed=st.integers(0, 1000))
def test_crops_have_the_wanted_area_and_aspect_and_stay_inside(low, spread, seed):
    high = low + (1 - low) * spread
    left, top, width, height = Warp(crop=(low, high)).sample(200, generator(seed)).unbind(1)[:4]
    whole = (width == 1) & (height == 1)  # what is left when no try fits
    assert (whole | ((width * height >= low - 1e-5) & (width * height <= high + 1e-5))).all()
    assert ((width / height >= 0.75 - 1e-5) & (width / height <= 4 / 3 + 1e-5)).all()
    assert (left >= 0).all() and (top >= 0).all()
    assert (left + width <= 1 + 1e-6).all() and (top + height <= 1 + 1e-6).all()


def test_crops_are_drawn_like_torchvisions_random_resized_crop():
    transforms = pytest.importorskip("torchvision.transforms")
    torch.manual_seed(0)
    picture = torch.zeros(3, 1000, 1000)
    theirs = [
        transforms.RandomResizedCrop.get_params(picture, [0.7, 1.0], [3 / 4, 4 / 3]) for _ in range(4000)
    ]
    ours = 1000 * Warp(crop=(0.7, 1.0)).sample(4000, generator())[:, [1, 0, 3, 2]]  # top, left, height, width
    reference = torch.tensor(theirs, dtype=torch.float32)
    for number in range(4):
        difference = (ours[:, number].sort().values - reference[:, number].sort().values).abs().max()
        assert difference < 40, "the quantiles of 4,000 draws agree within 4 % of the side"


def test_half_of_the_samples_are_flipped():
    mirror = Warp(flip=True).sample(4000, generator())[:, 5]
    assert set(mirror.tolist()) == {-1.0, 1.0} and abs(mirror.mean()) < 0.06
    assert (Warp().sample(100, generator())[:, 5] == 1).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_gives_the_same_images():
    x = images().repeat(8, 1, 1, 1)
    torch.testing.assert_close(ETA(x.cuda(), generator()).cpu(), ETA(x, generator()), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"crop": (0.5, 1.2)}, "crop must be shares of the area between 0 and 1"),
        ({"scale": (2.0, 1.0)}, r"scale must be a range \(low, high\)"),
        ({"scale": (0.0, 1.0)}, "scale must be positive"),
        ({"blur": (0.0, 1.0)}, "blur must be positive"),
    ],
)
def test_impossible_ranges_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        Warp(**values)


def test_wrong_inputs_are_refused():
    with pytest.raises(ValueError, match="x must be a float batch"):
        Warp().apply(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), params())
    with pytest.raises(ValueError, match=r"params must be \(2, 10\)"):
        Warp().apply(torch.zeros(2, 3, 8, 8), params())

"""Tiny ImageNet, and folders of a user's own images."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.commands import call
from helpers.sources import refused
from heterophony.core.errors import DataError
from heterophony.core.samples import BYTES_TO_PLUS_MINUS_ONE
from heterophony.data.sources import read_source
from heterophony.data.sources.folder import decode_image

WNIDS = ["n02", "n01", "n03"]  # the order of the file is the order of the labels


def picture(seed: int, side: int = 64, mode: str = "RGB") -> Image.Image:
    shape = (side, side) if mode == "L" else (side, side, 3)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, np.uint8))


def written(image: Image.Image, kind: str = "JPEG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def read_back(blob: bytes, side: int = 64) -> np.ndarray:
    image = Image.open(io.BytesIO(blob)).convert("RGB")
    if side != 64:
        image = image.resize((side, side), Image.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1)


# Tiny ImageNet --------------------------------------------------------------------------------


def tiny() -> tuple[dict[str, bytes], list[str], list[int]]:
    """The official files of a small set; and the files in order with their labels."""
    files = {
        "wnids.txt": "".join(f"{w}\n" for w in WNIDS).encode(),
        "words.txt": b"n01\tgoldfish, Carassius auratus\nn02\tcrane\nn03\tcrane, bird\nn99\tother\n",
    }
    order, labels = [], []
    for wnid in sorted(WNIDS):
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"x.JPEG\t0\t0\t62\t62\n"
        for i in (0, 1, 10):
            name = f"train/{wnid}/images/{wnid}_{i}.JPEG"
            files[name] = written(picture(len(files), mode="L" if i == 1 else "RGB"))
            order.append(name)
            labels.append(WNIDS.index(wnid))
    lines = []
    for i in (0, 2, 1):
        files[f"val/images/val_{i}.JPEG"] = written(picture(100 + i))
        lines.append(f"val_{i}.JPEG\t{WNIDS[i]}\t0\t32\t44\t62\n")
    files["val/val_annotations.txt"] = "".join(lines).encode()
    files["test/images/test_0.JPEG"] = written(picture(200))
    order += [f"val/images/val_{i}.JPEG" for i in range(3)]
    return files, sorted(order[:9]) + order[9:], [*labels, 0, 1, 2]


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny-imagenet-200/", b"")
        for name, content in files.items():
            archive.writestr(f"tiny-imagenet-200/{name}", content)
    return path


def unpack(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(("name", "side"), [("tinyimagenet", 64), ("tinyimagenet-32", 32)])
def test_tiny_imagenet_is_read_from_the_zip_and_from_the_folder(tmp_path, name, side):
    files, order, labels = tiny()
    path = zipped(tmp_path / "tiny-imagenet-200.zip", files)
    other = tmp_path / "other"
    folder = unpack(other / "tiny-imagenet-200", files)
    x = np.stack([read_back(files[f], side) for f in order])
    for place in (path, tmp_path, folder, other):
        made = read_source(name, str(place))
        assert made.name == name
        assert np.array_equal(made.x, x)
        assert made.y.tolist() == labels
        assert made.official == 9
        assert made.scale == BYTES_TO_PLUS_MINUS_ONE
        assert made.labels == ("n02", "goldfish", "n03"), "two classes are called crane"


def test_grey_images_of_tiny_imagenet_have_three_equal_channels(tmp_path):
    files, order, _ = tiny()
    made = read_source("tinyimagenet", str(zipped(tmp_path / "a.zip", files)))
    grey = made.x[[name.endswith("_1.JPEG") for name in order[:9]] + [False] * 3]
    assert len(grey) == 3
    assert np.array_equal(grey[:, 0], grey[:, 1])
    assert np.array_equal(grey[:, 0], grey[:, 2])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train/n01/images/n01_0.JPEG": b"\xff\xd8 no image"}, "n01_0.JPEG is not a readable im"),
        ({"train/n04/images/n04_0.JPEG": b""}, "wnids.txt does not have n04"),
        ({"val/val_annotations.txt": b"val_0.JPEG\tn02\nval_1.JPEG\n"}, "txt:2: no known class"),
        ({"val/val_annotations.txt": b"val_7.JPEG\tn02\n"}, "has no val/images/val_7.JPEG"),
        ({"wnids.txt": b"\xff\xfe"}, "wnids.txt is not text"),
        ({"wnids.txt": None}, "has no wnids.txt"),
        ({"words.txt": None}, "has no words.txt"),
    ],
)
def test_damaged_tiny_imagenet_is_refused(tmp_path, change, words):
    files = {k: v for k, v in (tiny()[0] | change).items() if v is not None}
    assert words in refused(read_source, "tinyimagenet", str(zipped(tmp_path / "a.zip", files)))


def test_an_image_cut_short_and_a_zip_cut_short_are_refused(tmp_path):
    files, order, _ = tiny()
    path = zipped(tmp_path / "a.zip", files | {order[0]: files[order[0]][:-300]})
    assert f"{path / order[0]} is not a readable image" in refused(
        read_source, "tinyimagenet", str(path)
    )
    blob = path.read_bytes()
    path.write_bytes(blob[:-10])
    said = refused(read_source, "tinyimagenet", str(path))
    assert said.startswith(f"{path} is not a readable archive")
    blob = zipped(path, files).read_bytes()
    at = blob.index(files[order[0]]) + 100
    path.write_bytes(blob[:at] + bytes([blob[at] ^ 255]) + blob[at + 1 :])
    said = refused(read_source, "tinyimagenet", str(path))
    assert said.startswith(f"{path / order[0]} cannot be read (it is cut short or damaged)")


def test_a_folder_without_training_images_is_refused(tmp_path):
    files = {k: v for k, v in tiny()[0].items() if not k.endswith(".JPEG")}
    assert "has no train/…/images/….JPEG" in refused(
        read_source, "tinyimagenet", str(unpack(tmp_path / "a", files))
    )


# A user's own images --------------------------------------------------------------------------


def saved(path: Path, image: Image.Image) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
    made = np.asarray(image)
    return made[None] if made.ndim == 2 else made.transpose(2, 0, 1)


def test_a_folder_per_class(tmp_path):
    place = tmp_path / "pets"
    x = [
        saved(place / "cat" / "b.png", picture(1, 12)),
        saved(place / "dog" / "a.PNG", picture(2, 12)),
        saved(place / "dog" / "c.png", picture(3, 12)),
    ]
    (place / "dog" / "notes.txt").write_text("dear")
    made = read_source(str(place))
    assert made.name == "pets"
    assert np.array_equal(made.x, np.stack(x))
    assert made.y.tolist() == [0, 1, 1]
    assert made.labels == ("cat", "dog")
    assert made.official is None
    assert made.scale == BYTES_TO_PLUS_MINUS_ONE


@pytest.mark.parametrize("test", ["test", "val"])
def test_train_and_test_with_a_folder_per_class(tmp_path, test):
    x = [
        saved(tmp_path / "train" / "a" / "1.png", picture(1, 9, "L")),
        saved(tmp_path / "train" / "b" / "1.png", picture(2, 9, "L")),
        saved(tmp_path / test / "b" / "1.png", picture(3, 9, "L")),
    ]
    made = read_source(str(tmp_path))
    assert np.array_equal(made.x, np.stack(x))
    assert made.x.shape == (3, 1, 9, 9), "all are grey"
    assert made.y.tolist() == [0, 1, 1]
    assert made.official == 2


def test_validation_images_that_are_not_read_are_named(tmp_path):
    for part in ("train", "val", "test"):
        for name in ("a", "b"):
            saved(tmp_path / part / name / "1.png", picture(1, 9))
    made = read_source(str(tmp_path))
    assert (made.official, len(made.y)) == (2, 4)
    said = f"{tmp_path / 'val'} is not used, because there is a folder test"
    assert made.remark == said
    shown = call("data", "show", tmp_path).stderr
    assert "is not used, because there is a folder test" in " ".join(shown.split())


def test_grey_among_colour_becomes_colour(tmp_path):
    saved(tmp_path / "a" / "1.png", picture(1, 5, "L"))
    saved(tmp_path / "b" / "2.png", picture(2, 5))
    made = read_source(str(tmp_path))
    assert made.x.shape == (2, 3, 5, 5)
    assert np.array_equal(made.x[0, 0], made.x[0, 2])


def test_images_of_two_sizes_are_named(tmp_path):
    one, other = tmp_path / "a" / "1.png", tmp_path / "b" / "1.png"
    saved(one, picture(1, 5))
    saved(other, picture(2, 6))
    assert refused(read_source, str(tmp_path)) == (
        f"all images must be the same size: {one} is 5×5, {other} is 6×6"
    )


def test_a_damaged_image_and_an_empty_folder_are_refused(tmp_path):
    said = refused(read_source, str(tmp_path))
    assert said.startswith(f"data.name: {tmp_path} is in none of the known formats. Looked for: ")
    path = tmp_path / "a" / "1.png"
    saved(path, picture(1, 5))
    blob = path.read_bytes()
    for content in (b"", b"no image", blob[:60], blob[:-30]):
        path.write_bytes(content)
        assert refused(read_source, str(tmp_path)).startswith(f"{path} is not a readable image")


@pytest.mark.parametrize(
    ("suffix", "dtype", "words"),
    [
        (
            "png",
            np.uint16,
            "has 16 bits per pixel; convert it to 8 bits, or store arrays of floats",
        ),
        (
            "tif",
            np.uint16,
            "has 16 bits per pixel; convert it to 8 bits, or store arrays of floats",
        ),
        ("tif", np.int32, "has 32 bits per pixel; convert it to 8 bits, or store arrays of floats"),
        (
            "tif",
            np.float32,
            "has 32 bits per pixel; convert it to 8 bits, or store arrays of floats",
        ),
        ("tif", np.uint8, "holds 2 images; store each in a file of its own"),
        ("gif", np.uint8, "holds 2 images; store each in a file of its own"),
    ],
)
def test_images_that_bytes_cannot_hold_are_refused(tmp_path, suffix, dtype, words):
    for name in ("a", "b"):
        saved(tmp_path / name / f"1.{suffix}", picture(1, 5, "L"))
    made = [Image.fromarray(np.full((5, 5), value, dtype)) for value in (44, 7)]
    path = tmp_path / "a" / f"1.{suffix}"
    made[0].save(path, save_all=dtype == np.uint8, append_images=made[1:])
    assert refused(read_source, str(tmp_path)).startswith(f"{path} {words}")
    with pytest.raises(DataError, match=words):
        decode_image(path.read_bytes(), path)

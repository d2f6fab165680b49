"""The data: what they are, and that the manifest lists all and says what each is."""

import hashlib
import json

import pytest
import torch

from course_utils import data, digits

MANIFEST = json.loads(data.read("manifest.json"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_digits_are_images_from_0_to_1_in_the_default_dtype_with_a_label_each(dtype):
    torch.set_default_dtype(dtype)
    for split, size in (("train", 1437), ("test", 360)):
        images, labels = digits(split)
        assert images.shape == (size, 64)
        assert images.dtype == dtype
        assert (images.min(), images.max()) == (0, 1)
        assert labels.shape == (size,)
        assert labels.dtype == torch.int64
        assert labels.unique().tolist() == list(range(10))


def test_the_manifest_lists_every_file_but_those_that_the_course_writes_and_no_other():
    folder = data.folder()
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    written = {"manifest.json", "claims.csv"}
    described = {name for name in files - written if not name.startswith(("facts/", "predictions/"))}
    assert described == MANIFEST.keys()


def test_the_manifest_says_what_each_file_is_and_its_checksum():
    for name, entry in MANIFEST.items():
        assert entry.keys() == {"title", "origin", "licence", "sha256"}, name
        assert all(text.strip() for text in entry.values()), name
        assert hashlib.sha256((data.folder() / name).read_bytes()).hexdigest() == entry["sha256"], name


@pytest.mark.parametrize(
    "content", [None, b"", b"version https://git-lfs.github.com/spec/v1", data.read("words.txt.gz")]
)
def test_a_file_that_is_missing_or_damaged_is_named_with_what_to_do(content, tmp_path, monkeypatch):
    (tmp_path / "manifest.json").write_bytes(data.read("manifest.json"))
    if content is not None:
        (tmp_path / "digits.csv.gz").write_bytes(content)
    monkeypatch.setattr(data, "folder", lambda: tmp_path)
    with pytest.raises(OSError, match=r"digits\.csv\.gz is missing or damaged: restore it with `git checkout -- data`"):
        digits()

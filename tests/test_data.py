"""The data: what they are, that the manifest lists them all, and that a damaged file is reported."""

import hashlib
import shutil

import pytest
import torch

from course_utils import data, digits, next_letters, words
from course_utils.data import DataError


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of the data folder, which a test may break."""
    folder = shutil.copytree(data.folder(), tmp_path / "data")
    monkeypatch.setattr(data, "folder", lambda: folder)
    return folder


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
    written = {"manifest.json", "claims.csv", "mistakes.toml"}
    described = {name for name in files - written if not name.startswith(("facts/", "predictions/"))}
    assert described == data.manifest().keys()


def test_the_manifest_says_what_each_file_is_and_its_checksum():
    for name, entry in data.manifest().items():
        assert entry.keys() == {"title", "origin", "licence", "sha256"}, name
        assert all(text.strip() for text in entry.values()), name
        assert hashlib.sha256((data.folder() / name).read_bytes()).hexdigest() == entry["sha256"], name


def truncate(path):
    path.write_bytes(path.read_bytes()[:-10])


def alter(path):
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(("name", "load"), [("digits.csv.gz", digits), ("words.txt.gz", words)])
@pytest.mark.parametrize(
    ("damage", "saying"),
    [
        (lambda path: path.unlink(), "cannot be read"),
        (truncate, "truncated or altered"),
        (alter, "truncated or altered"),
    ],
    ids=["missing", "truncated", "altered"],
)
def test_a_damaged_file_gives_one_error_that_names_it_and_the_fix(copied, name, load, damage, saying):
    load()
    damage(copied / name)
    with pytest.raises(DataError) as caught:
        load()
    for part in (str(copied / name), saying, "git checkout -- data", "install the package again"):
        assert part in str(caught.value)


def test_a_batch_of_words_asks_for_each_next_letter_and_the_end():
    inputs, targets = next_letters(["zoo", "a"])
    assert inputs.tolist() == [[0, 26, 15, 15], [0, 1, 0, 0]]
    assert targets.tolist() == [[26, 15, 15, 0], [1, 0, -100, -100]]
    assert inputs.dtype == targets.dtype == torch.int64


@pytest.mark.parametrize("content", [None, b"{", b"{}"], ids=["missing", "not JSON", "no entry"])
def test_a_damaged_manifest_gives_one_error_that_names_it_and_the_fix(copied, content):
    manifest = copied / "manifest.json"
    manifest.unlink() if content is None else manifest.write_bytes(content)
    with pytest.raises(DataError, match="git checkout -- data") as caught:
        digits()
    assert str(manifest) in str(caught.value)

#!/usr/bin/env python3
"""What `datasets` reads of generated dataset folders: writes hub_folders.json next to this file.

    python hub_folders.py          # needs datasets and pyarrow; takes a few minutes
    python hub_folders.py --check  # writes nothing; exits with 1 if the file differs

Each text of a folder is the name of its file, so the rows of a split name the files that were read, in order, and how often.
A folder and a repository of the hub are resolved by the same code.
"""

import bz2
import gzip
import io
import json
import os
import random
import sys
import tempfile
import zipfile
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1", HF_HUB_DISABLE_PROGRESS_BARS="1")

import datasets  # noqa: E402
import pyarrow  # noqa: E402
import pyarrow.parquet  # noqa: E402

HERE = Path(__file__).resolve().parent
STANDARD_SPLITS = ["train", "validation", "test"]


def content(path):
    """The bytes of a file whose only text is its own name."""
    name = path.rsplit("/", 1)[-1]
    if name.endswith(".gz"):
        return gzip.compress(content(path[:-3]).replace(path[:-3].encode(), path.encode()), mtime=0)
    if name.endswith(".bz2"):
        return bz2.compress(content(path[:-4]).replace(path[:-4].encode(), path.encode()))
    if name.endswith(".zip"):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("inside.jsonl", json.dumps({"text": path}))
        return out.getvalue()
    if name.endswith((".parquet", ".geoparquet", ".gpq")):
        out = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table({"text": [path]}), out)
        return out.getvalue()
    if name.endswith(".json"):
        return json.dumps([{"text": path}]).encode()
    if name.endswith((".csv", ".tsv")):
        return f"text\n{path}\n".encode()
    if ".json" in name or name.endswith(".ndjson"):
        return (json.dumps({"text": path}) + "\n").encode()
    return (path + "\n").encode()


def configs(*entries):
    """A card with these entries under `configs`, as JSON, which is YAML."""
    return "---\nconfigs:\n" + "".join(f"- {json.dumps(entry)}\n" for entry in entries) + "---\n# A dataset\n"


def one(*patterns, **more):
    return configs({"config_name": "default", "data_files": list(patterns), **more})


def split(name, path):
    return {"split": name, "path": path}


def handmade():
    """Folders as `(name, files, card)`."""
    two = ["train.jsonl", "test.jsonl"]
    lines = ["a.jsonl", "b.jsonl", "c.jsonl"]
    out = [
        ("names", two, None),
        ("no config of that name", ["en/train.jsonl", "de/train.jsonl"], None),
        ("prefix", ["wiki-train.jsonl", "wiki-test.jsonl", "wiki.dev.jsonl"], None),
        ("underscore", ["tiny_train.jsonl", "tiny_valid.jsonl"], None),
        ("numbered", ["train_0.parquet", "train_1.parquet", "test_0.parquet", "test1.parquet"], None),
        ("no separator", ["training.jsonl", "trainset.jsonl", "testing.jsonl", "mytrain.jsonl"], None),
        ("case", ["Train.jsonl", "TEST.jsonl", "val.jsonl"], None),
        ("case alone", ["Train.jsonl", "TEST.jsonl"], None),
        ("upper ending", ["a.JSONL", "b.jsonl"], None),
        ("keywords twice", ["train-training.jsonl", "b-train.jsonl", "dev-val.jsonl", "eval_test.jsonl"], None),
        ("folders", ["data/train/b.jsonl", "data/train/a.jsonl", "data/test/a.jsonl", "data/notes.jsonl"], None),
        ("folders first", ["train/a.jsonl", "test.jsonl", "dev.jsonl"], None),
        ("folders with keywords", ["my_train/a.jsonl", "train_2/a.jsonl", "x-test-y/b.jsonl", "eval/c.jsonl"], None),
        ("deep folders", ["train/train_1/a.jsonl", "train/b.jsonl", "x/test/eval/c.jsonl"], None),
        ("script in test folder", ["test/run.py", "train.jsonl"], None),
        ("text in test folder", ["test/notes.rst", "train.jsonl", "test.jsonl"], None),
        ("shards", [f"data/train-0000{i}-of-00003.parquet" for i in range(3)] + ["data/test-00000-of-00001-ab.parquet", "x.parquet"], None),
        ("shards of any split", ["data/zulu-00000-of-00001.jsonl", "data/alpha-00000-of-00001.jsonl"], None),
        ("shards of dashed split", ["data/my-train-00000-of-00001.jsonl", "data/test-00000-of-00001.jsonl"], None),
        ("shards elsewhere", ["train-00000-of-00001.jsonl", "test-00000-of-00001.jsonl", "other-00000-of-00001.jsonl"], None),
        ("shards deeper", ["x/data/train-00000-of-00001.jsonl", "x/data/more-00000-of-00001.jsonl"], None),
        ("shards of few digits", ["data/train-0000-of-0001.jsonl", "data/more-0000-of-0001.jsonl"], None),
        ("all", lines, None),
        ("all, deep", ["x/y/b.jsonl", "a.jsonl", "x/c.jsonl", "x.jsonl"], None),
        ("order", ["b.jsonl", "a/z.jsonl", "a.jsonl", "a-1.jsonl", "B.jsonl", "é.jsonl", "_.jsonl"], None),
        ("text", ["a.txt", "b.txt"], None),
        ("license", ["LICENSE.txt", "data.jsonl"], None),
        ("license and csv", ["LICENSE.txt", "data.csv"], None),
        ("license and gz", ["LICENSE.txt", "train.jsonl.gz", "test.jsonl.gz"], None),
        ("csv", ["train.csv", "test.csv"], None),
        ("tsv", ["train.tsv", "test.csv"], None),
        ("csv beside json", ["train.csv", "b_train.json", "train_2.csv"], None),
        ("json beside csv", ["a.json", "b.jsonl", "c.csv"], None),
        ("parquet beside json", ["a.jsonl", "b.jsonl", "c.parquet"], None),
        ("a draw", ["a.jsonl", "c.parquet", "b.txt"], None),
        ("a draw of json", ["a.txt", "b.json"], None),
        ("several suffixes", ["a.v1.jsonl", "b.v1.txt", "c.v1.jsonl", "d.jsonl.bak"], None),
        ("json in name of text", ["a.json.txt", "b.json.txt"], None),
        ("formats differ", ["train.jsonl", "test.parquet"], None),
        ("formats differ, json", ["train.jsonl", "test.json", "dev.ndjson"], None),
        ("gz", ["a.jsonl", "b.jsonl.gz"], None),
        ("gz alone", ["train.jsonl.gz", "test.jsonl"], None),
        ("bz2", ["train.jsonl.bz2"], None),
        ("zip", ["data.zip"], None),
        ("zip beside", ["a.jsonl", "b.zip"], None),
        ("hidden", [".b.jsonl", "a.jsonl", ".git/c.jsonl", "x/.ipynb_checkpoints/d.jsonl"], None),
        ("hidden split", [".train/a.jsonl", "b.jsonl"], None),
        ("special", ["__pycache__/a.jsonl", "b.jsonl", "__c.jsonl", "__MACOSX/train.jsonl"], None),
        ("descriptions", ["config.json", "dataset_dict.json", "x/dataset_info.json", "dataset_infos.json", "a.json"], None),
        ("metadata", ["metadata.jsonl", "a.txt"], None),
        ("metadata alone", ["metadata.jsonl"], None),
        ("images", ["a.png", "b.png", "metadata.jsonl"], None),
        ("script", ["script.py", "train.jsonl"], None),
        ("nothing", ["a.bin", "b"], None),
        ("logs", ["x.eval", "train.jsonl"], None),
        ("harbor", ["x/task.toml", "train.jsonl"], None),
        ("a toml", ["x/pyproject.toml", "a.jsonl"], None),
        ("markdown", ["a.md", "b.jsonl", "c.md"], None),
        ("markdown in folder", ["docs/README.md", "docs/guide.md", "train.jsonl"], None),
        ("geoparquet", ["a.geoparquet", "b.gpq", "c.parquet"], None),
        ("card without list", two, "---\nlicense: mit\n---\n"),
        ("card without YAML", two, "# A dataset\n"),
        ("star", ["data/a.jsonl", "data/.b.jsonl", "data/x/c.jsonl"], one("data/*")),
        ("two stars", ["data/a.jsonl", "data/.x/b.jsonl", "data/x/c.jsonl", "data/__x/d.jsonl"], one("data/**")),
        ("hidden named", ["data/a.jsonl", "data/.b.jsonl", ".x/c.jsonl", "__d/e.jsonl"], one("data/.b*", ".x/*", "__*/*")),
        ("two stars in a name", lines, one("**.jsonl")),
        ("two stars inside", ["x/y/a.jsonl", "x/b.jsonl", "c.jsonl"], one("x/**/*.jsonl")),
        ("leading two stars", ["x/y/a.jsonl", "x/b.jsonl", "c.jsonl", "d.txt"], one("**/*.jsonl")),
        ("question mark", ["a1.jsonl", "a12.jsonl", "a.jsonl"], one("a?.jsonl")),
        ("class", ["a1.jsonl", "a2.jsonl", "a3.jsonl", "a-.jsonl"], one("a[1-2].jsonl", "a[!0-9].jsonl")),
        ("braces", ["a.jsonl", "b.jsonl", "{a,b}.jsonl"], one("{a,b}.jsonl")),
        ("braces of none", ["a.jsonl", "b.jsonl"], one("{a,b}.jsonl")),
        ("open bracket", ["a[.jsonl", "b.jsonl"], one("a[.jsonl")),
        ("name like a pattern", ["a[1].jsonl", "a1.jsonl"], one("a[1].jsonl")),
        ("folder", ["data/a.jsonl"], one("data")),
        ("folder with slash", ["data/a.jsonl"], one("data/")),
        ("star with slash", ["data/x/a.jsonl", "data/b.jsonl"], one("data/*/")),
        ("star of folders", ["data/x/a.jsonl", "b.jsonl"], one("*")),
        ("dot slash", lines, one("./a.jsonl", "./b*")),
        ("absolute", lines, one("/a.jsonl")),
        ("upwards", lines, one("../x/a.jsonl", "a.jsonl")),
        ("address", lines, one("https://example.com/a.jsonl")),
        ("missing", lines, one("a.jsonl", "d.jsonl")),
        ("missing by pattern", lines, one("a.jsonl", "d*.jsonl")),
        ("nothing by pattern", lines, one("d*.jsonl")),
        ("order of patterns", lines, one("c*", "a*", "b.jsonl")),
        ("named twice", lines, one("a.jsonl", "*.jsonl")),
        ("ignored named", ["config.json", "a.json"], one("config.json", "a.json")),
        ("ignored matched", ["config.json", "a.json"], one("*.json")),
        ("unknown ending", ["a.jsonl", "b.bin"], one("a.jsonl", "b.bin")),
        ("unknown ending matched", ["a.jsonl", "b.bin"], one("*")),
        ("bak", ["a.jsonl.bak", "b.jsonl"], one("*")),
        ("one pattern", lines, configs({"config_name": "default", "data_files": "b*"})),
        ("mapping", two, configs({"config_name": "default", "data_files": {"train": "train.jsonl"}})),
        ("number", two, configs({"config_name": "default", "data_files": 3})),
        ("splits", lines, one(split("train", ["c.jsonl", "a.jsonl"]), split("extra", "b.jsonl"))),
        ("split twice", lines, one(split("train", "c.jsonl"), split("train", "b.jsonl"))),
        ("split without path", lines, one(split("train", "c.jsonl"), {"split": "test"})),
        ("split with more", lines, one({**split("train", "c.jsonl"), "size": 3})),
        ("split and string", lines, one(split("train", "c.jsonl"), "a.jsonl")),
        ("split with dash", lines, one(split("my-train", "c.jsonl"))),
        ("split with dot", lines, one(split("v1.train", "c.jsonl"))),
        ("path of numbers", lines, one(split("train", [3]))),
        ("empty list", lines, one()),
        ("null list", two, configs({"config_name": "default", "data_files": None})),
        ("empty split", lines, one(split("train", "a.jsonl"), split("test", "d*"))),
        ("split without files", lines, one(split("train", "a.jsonl"), split("test", []))),
        ("json and jsonl", ["data/a.jsonl", "data/b.json", "data/c.ndjson"], one("data/*")),
        ("gz by list", ["data/a.jsonl", "data/b.jsonl.gz"], one("data/*")),
        ("gz and statistics", ["data/a.jsonl.gz", "data/b.jsonl.gz", "data/stats.json"], one("data/*")),
        ("gz of test", ["train.jsonl", "test.jsonl.gz"], one(split("train", "train.jsonl"), split("test", "test.jsonl.gz"))),
        ("parquet and jsonl", ["data/a.jsonl", "data/b.parquet", "data/c.jsonl"], one("data/*")),
        ("text and jsonl", ["data/a.jsonl", "data/b.txt", "data/c.jsonl"], one("data/*")),
        ("text and json", ["data/a.txt", "data/b.json", "data/c.txt"], one("data/*")),
        ("csv in text", ["data/a.txt", "data/b.csv", "data/c.txt"], one("data/*")),
        ("parquet of test", ["a.jsonl", "b.parquet"], one(split("train", "a.jsonl"), split("test", "b.parquet"))),
        ("no name", two, configs({"data_files": "train.jsonl"})),
        ("one without name", two, configs({"config_name": "a", "data_files": "train.jsonl"}, {"data_files": "test.jsonl"})),
        ("name of a number", two, configs({"config_name": 3, "data_files": "train.jsonl"})),
        ("name with slash", two, configs({"config_name": "a/b", "data_files": "train.jsonl"})),
        ("no list", two, configs()),
        ("configs of a string", two, "---\nconfigs: x\n---\n"),
        ("configs of strings", two, "---\nconfigs: [x]\n---\n"),
        ("a list at the top", two, "---\n- a\n---\n"),
        ("data_dir", ["foo/train.jsonl", "foo/test.jsonl", "bar/train.jsonl"], configs({"config_name": "default", "data_dir": "foo"})),
        ("data_dirs", ["en/train-0.parquet", "en/validation-0.parquet", "de/train-0.parquet"],
         configs({"config_name": "en", "data_dir": "en"}, {"config_name": "de", "data_dir": "de/"})),
        ("data_dir of shards", ["en/data/train-00000-of-00001.jsonl", "en/x.jsonl"], configs({"config_name": "en", "data_dir": "en"})),
        ("data_dir in train", ["train/en/a.jsonl", "train/en/test.jsonl"], configs({"config_name": "en", "data_dir": "train/en"})),
        ("data_dir and star", ["en/a.jsonl", "en/b.jsonl", "c.jsonl"], configs({"config_name": "en", "data_dir": "en", "data_files": "*.jsonl"})),
        ("data_dir and star alone", ["en/a.jsonl", "en/b.jsonl"], configs({"config_name": "en", "data_dir": "en", "data_files": "*.jsonl"})),
        ("data_dir and names", ["en/a.jsonl", "a.jsonl"], configs({"config_name": "en", "data_dir": "en", "data_files": ["a.jsonl"]})),
        ("data_dir and list, second", ["en/a.jsonl", "b.jsonl"],
         configs({"config_name": "x", "data_files": "b.jsonl"}, {"config_name": "en", "data_dir": "en", "data_files": ["a.jsonl"]})),
        ("missing data_dir", two, configs({"config_name": "a", "data_files": "train.jsonl"}, {"config_name": "b", "data_dir": "none"})),
        ("hidden data_dir", [".x/train.jsonl", ".x/.y.jsonl", "train.jsonl"], configs({"config_name": "a", "data_dir": ".x"})),
        ("absolute data_dir", ["x/train.jsonl", "train.jsonl"], configs({"config_name": "a", "data_dir": "/x"})),
        ("data_dir upwards", ["x/train.jsonl", "train.jsonl"], configs({"config_name": "a", "data_dir": "x/../x"})),
        ("data_dir with dot", ["x/train.jsonl", "train.jsonl"], configs({"config_name": "a", "data_dir": "./x"})),
        ("data_dir of a dot", ["x/train.jsonl", "train.jsonl"], configs({"config_name": "a", "data_dir": "."})),
        ("empty data_dir", ["x/test.jsonl", "train.jsonl"], configs({"config_name": "a", "data_dir": ""})),
        ("data_dir of other format", ["en/train.jsonl", "de/train.parquet"],
         configs({"config_name": "en", "data_dir": "en"}, {"config_name": "de", "data_dir": "de"})),
        ("neither", two, configs({"config_name": "a"})),
        ("several", lines, configs({"config_name": "x", "data_files": "a.jsonl"}, {"config_name": "y", "data_files": "b.jsonl"})),
        ("default by name", lines, configs({"config_name": "x", "data_files": "a.jsonl"}, {"config_name": "default", "data_files": "b.jsonl"})),
        ("default by mark", lines, configs({"config_name": "x", "data_files": "a.jsonl"}, {"config_name": "y", "default": True, "data_files": "b.jsonl"})),
        ("default twice", lines, configs({"config_name": "default", "data_files": "a.jsonl"}, {"config_name": "y", "default": True, "data_files": "b.jsonl"})),
        ("default: yes", lines, "---\nconfigs:\n- config_name: x\n  data_files: a.jsonl\n- config_name: y\n  default: yes\n  data_files: b.jsonl\n---\n"),
        ("default of text", lines, configs({"config_name": "x", "data_files": "a.jsonl"}, {"config_name": "y", "default": "false", "data_files": "b.jsonl"})),
        ("default: false", lines, configs({"config_name": "x", "data_files": "a.jsonl", "default": False}, {"config_name": "y", "data_files": "b.jsonl"})),
        ("config twice", lines, configs({"config_name": "x", "data_files": "a.jsonl"}, {"config_name": "x", "data_files": "b.jsonl"})),
        ("other format second", ["a.jsonl", "b.parquet"], configs({"config_name": "x", "data_files": "a.jsonl"}, {"config_name": "y", "data_files": "b.parquet"})),
        ("csv first", ["a.csv", "b.jsonl"], configs({"config_name": "x", "data_files": "a.csv"}, {"config_name": "y", "data_files": "b.jsonl"})),
        ("empty split second", lines, configs({"config_name": "x", "data_files": "a.jsonl"}, {"config_name": "y", "data_files": [split("train", "b.jsonl"), split("test", "d*")]})),
        ("empty first split second", lines, configs({"config_name": "x", "data_files": "a.jsonl"}, {"config_name": "y", "data_files": [split("test", "d*"), split("train", "b.jsonl")]})),
        ("info of one", two, "---\ndataset_info:\n  config_name: foo\n  features:\n  - name: text\n    dtype: string\n---\n"),
        ("info of one, no name", two, "---\ndataset_info:\n  features:\n  - name: text\n    dtype: string\n---\n"),
        ("info chooses", lines, configs({"config_name": "x", "data_files": "a.jsonl"}, {"config_name": "y", "data_files": "b.jsonl"}).replace("---\nconfigs", "---\ndataset_info:\n  config_name: y\nconfigs")),
        ("info of two", lines, configs({"config_name": "x", "data_files": "a.jsonl"}, {"config_name": "y", "data_files": "b.jsonl"}).replace("---\nconfigs", "---\ndataset_info:\n- config_name: y\n- config_name: x\nconfigs")),
        ("info of other", lines, configs({"config_name": "x", "data_files": "a.jsonl"}, {"config_name": "y", "data_files": "b.jsonl"}).replace("---\nconfigs", "---\ndataset_info:\n  config_name: z\nconfigs")),
        ("info with the splits", two, "---\ndataset_info:\n  splits:\n  - name: train\n    num_examples: 1\n  - name: test\n    num_examples: 1\n---\n"),
        ("info with fewer splits", two, "---\ndataset_info:\n  splits:\n  - name: train\n    num_examples: 1\n---\n"),
        ("info with more splits", ["train.jsonl"], "---\ndataset_info:\n  splits:\n  - name: train\n    num_examples: 1\n  - name: test\n    num_examples: 1\n---\n"),
        ("info without counts", ["train.jsonl"], "---\ndataset_info:\n  splits:\n  - name: train\n---\n"),
        ("field", ["a.jsonl"], one("a.jsonl", field="text")),
        ("unknown setting", ["a.jsonl"], one("a.jsonl", colour="red")),
        ("separator", ["a.jsonl"], one("a.jsonl", sep=";")),
        ("description", ["a.jsonl"], one("a.jsonl", description="lines", version="1.0.0")),
        ("blank lines before", lines, "\n \n" + one("b.jsonl")),
        ("byte order mark", lines, "\ufeff" + one("b.jsonl")),
        ("CRLF", lines, one("b.jsonl").replace("\n", "\r\n")),
        ("CR", lines, one("b.jsonl").replace("\n", "\r")),
        ("text before", lines, "# Title\n" + one("b.jsonl")),
        ("blank after the dashes", lines, one("b.jsonl").replace("---\n", "--- \n", 1)),
        ("blank after the last dashes", lines, one("b.jsonl").replace("---\n#", "--- \t\n#")),
        ("four dashes", lines, one("b.jsonl").replace("---\n#", "----\n#")),
        ("not closed", lines, one("b.jsonl").replace("---\n#", "#")),
        ("closed at the end", lines, one("b.jsonl").replace("---\n# A dataset\n", "---")),
        ("closed inside", lines, one("b.jsonl").replace("# A dataset", "more\n---\n")),
        ("empty YAML", lines, "---\n\n---\n"),
        ("not YAML", lines, "---\na: [\n---\n"),
        ("tab", lines, "---\nconfigs:\n\t- config_name: x\n---\n"),
        ("a key twice", lines, one("b.jsonl").replace("---\nconfigs", "---\nlicense: mit\nlicense: mit\nconfigs")),
        ("a key of a list twice", lines, "---\nconfigs:\n- config_name: x\n  data_files: a.jsonl\n  data_files: b.jsonl\n---\n"),
        ("configs twice", lines, one("b.jsonl").replace("---\n#", "configs:\n- config_name: x\n  data_files: c.jsonl\n---\n#")),
        ("alias", lines, "---\nconfigs:\n- config_name: x\n  data_files: &f a.jsonl\n- config_name: y\n  data_files: *f\n---\n"),
        ("name: no", lines, "---\nconfigs:\n- config_name: no\n  data_files: a.jsonl\n---\n"),
        ("name of a date", lines, "---\nconfigs:\n- config_name: 2024-01-01\n  data_files: a.jsonl\n---\n"),
        ("name of digits, quoted", lines, "---\nconfigs:\n- config_name: '2024'\n  data_files: a.jsonl\n---\n"),
        ("split of a number", lines, "---\nconfigs:\n- config_name: x\n  data_files:\n  - split: 1\n    path: a.jsonl\n---\n"),
        ("exponent", lines, "---\nconfigs:\n- config_name: 1e5\n  data_files: a.jsonl\n---\n"),
        ("tag", lines, "---\nconfigs:\n- config_name: !!str 5\n  data_files: a.jsonl\n---\n"),
        ("foreign tag", lines, "---\nx: !foo 3\nconfigs:\n- config_name: x\n  data_files: a.jsonl\n---\n"),
        ("two documents", lines, "---\na: 1\n...\nconfigs: []\n---\n"),
        ("standalone YAML", [*lines, ".huggingface.yaml"], None),
    ]
    return out


def generated(seed):
    """A folder of a random layout, often with a card."""
    dice = random.Random(seed)
    endings = dice.choice([[".jsonl"], [".parquet"], [".txt"], [".jsonl", ".json"], [".jsonl", ".jsonl.gz"], [".jsonl", ".txt"],
                           [".parquet", ".parquet", ".parquet", ".json"], [".csv"], [".csv", ".jsonl"], [".json"]])
    words = ["train", "test", "validation", "valid", "dev", "val", "eval", "training", "testing", "evaluation"]
    names = [*words, *words, "wiki", "a", "b", "part", "data", "en", "de", "tests", "pretrain", "x1", "0", "00000-of-00002", "00001-of-00002"]
    folders = ["", "", "data", "en", "de", "raw", dice.choice(words), "my_" + dice.choice(words), ".cache", "__pycache__", "en/data"]
    separators = ["-", "_", ".", " ", ""]
    files = set()
    for _ in range(dice.randint(2, 9)):
        parts = dice.choices(names, k=dice.choice([1, 1, 2, 2, 3]))
        stem = parts[0]
        for part in parts[1:]:
            stem += dice.choice(separators[:3] if dice.random() < 0.8 else separators) + part
        folder = dice.choice(folders)
        hidden = "." if dice.random() < 0.05 else ""
        files.add(f"{folder}/{hidden}{stem}{dice.choice(endings)}".lstrip("/"))
    if dice.random() < 0.2:
        files.add(dice.choice(["LICENSE.txt", "config.json", "notes.md", "metadata.jsonl", "run.py", "data.csv"]))
    files = sorted(files)

    def pattern():
        path = dice.choice(files)
        folder, _, name = path.rpartition("/")
        start = folder + "/" if folder else ""
        return dice.choice([path, path, start + "*", start + "**", start + name[:2] + "*", "**/" + name[:3] + "*", "*/" + name, "*",
                            start + "*." + name.rsplit(".")[-1], start + "?" + name[1:], start + "[" + name[0] + "-z]*", folder or "data/*"])

    def listed():
        form = dice.randint(0, 3)
        if form == 0:
            return pattern()
        if form == 1:
            return [pattern() for _ in range(dice.randint(1, 3))]
        named = dice.sample(["train", "test", "validation", "extra"], k=dice.randint(1, 3))
        return [split(name, dice.choice([pattern(), [pattern(), pattern()]])) for name in named]

    if dice.random() < 0.4:
        return (f"generated {seed}", files, None)
    entries = []
    for name in dice.sample(["default", "en", "de", "all"], k=dice.choice([1, 1, 1, 2, 3])):
        entry = {"config_name": name}
        kind = dice.random()
        if kind < 0.7:
            entry["data_files"] = listed()
        if kind > 0.6:
            entry["data_dir"] = dice.choice([path.rpartition("/")[0] or "data" for path in files])
        if dice.random() < 0.15:
            entry["default"] = True
        entries.append(entry)
    return (f"generated {seed}", files, configs(*entries))


def load(folder, config, cache):
    """The files of each split; None if `datasets` refuses."""
    try:
        found = datasets.load_dataset(str(folder), config, cache_dir=cache)
    except BaseException as error:  # noqa: BLE001
        if isinstance(error, KeyboardInterrupt):
            raise
        return None
    return {name: [row["text"] for row in rows] for name, rows in found.items()}


def answers(number, name, files, card):
    """What `datasets` gives for each configuration of a folder."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "script"
        for path in files:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content(path) if not path.endswith(("infos.json", "info.json")) else b"{}")
        if card is not None:
            (folder / "README.md").write_bytes(card.encode())
        asked = [None, "default", "en", "de", "all", "x", "y", "foo", "3"]
        asked = [config for config in asked if config in (None, "default") or config in (card or "") or number % 9 == 0]
        loaded = {config: load(folder, config, f"{temporary}/cache") for config in asked}
        return [{"config": config, "splits": splits} for config, splits in loaded.items()]


def main():
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    datasets.disable_progress_bars()
    folders = [*handmade(), *(generated(seed) for seed in range(int(os.environ.get("GENERATED", 260))))]
    out = []
    for number, (name, files, card) in enumerate(folders):
        out.append({"name": name, "files": files, "card": card, "answers": answers(number, name, files, card)})
        print(f"\r{number + 1}/{len(folders)}", end="", file=sys.stderr)
    text = "[" + ",\n".join(json.dumps(folder, ensure_ascii=False) for folder in out) + "]\n"
    path = HERE / "hub_folders.json"
    if "--check" in sys.argv:
        sys.exit(0 if path.read_text() == text else "hub_folders.json differs")
    path.write_text(text)
    read = sum(splits is not None for folder in out for splits in (answer["splits"] for answer in folder["answers"]))
    print(f"\n{path.name}: {len(out)} folders, {read} configurations read, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

"""Speed of tokenizing with GPT-2's vocabulary beside tiktoken and `tokenizers`, in MB/s of text, with the same threads.

    python benches/peers/tokenizing_speed.py RUNNER GPT2_FOLDER FILE... [--threads 1,2] [--times 3] [--megabytes 32] [--cpu]

Ours is `runner data prepare` from JSON lines to .npy shards: reading, decoding JSON, writing and syncing are in its time; loading the
tokenizer is not. Theirs is `encode_ordinary_batch` and `encode_batch_fast` of texts in memory. Each FILE, cut into documents (lines of
.jsonl, pieces of some thousand characters of .txt), is repeated until it has the size. The best of several times counts. `--cpu` takes processor time instead of the clock's, for busy
machines: then loading the tokenizer is in our time.
Needs `pip install tiktoken tokenizers`.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tests" / "golden"))


def documents(path, size):
    text = Path(path).read_text(encoding="utf-8")
    if path.endswith(".jsonl"):
        items = [json.loads(line) for line in text.splitlines()]
        parts = [i["ctx"] + " " + e for i in items for e in i["endings"]] if "endings" in items[0] else [i["text"] for i in items]
    else:
        parts = [text[i : i + 5000] for i in range(0, len(text), 5000)]
    parts = [p for p in parts if p]
    once = sum(len(p.encode()) for p in parts)
    return parts * max(1, size // once), once * max(1, size // once)


def processor_time(who=resource.RUSAGE_SELF):
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def ours(runner, gpt2, texts, threads, folder, cpu):
    source = Path(folder) / "texts.jsonl"
    with open(source, "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    command = [runner, "data", "prepare", source, "--tokenizer", f"gpt2:{gpt2}", "--to", "npy", Path(folder) / "out", "--name", "x"]
    environment = dict(os.environ, RUNNER_CACHE=str(Path(folder) / "cache"))
    command += ["--validation", "none", "--force", "--threads", threads, "--json", "--quiet"]
    before = processor_time(resource.RUSAGE_CHILDREN)
    made = json.loads(subprocess.run([*map(str, command)], check=True, env=environment, capture_output=True).stdout)
    seconds = processor_time(resource.RUSAGE_CHILDREN) - before if cpu else made["seconds"]
    return seconds, made["card"]["tokens"] - len(texts)


def theirs(which, gpt2, texts, threads, cpu):
    """In a process of its own: the number of threads of `tokenizers` is fixed when it starts."""
    environment = dict(os.environ, RAYON_NUM_THREADS=str(threads), TOKENIZERS_PARALLELISM="true")
    command = [sys.executable, __file__, "--child", which, str(gpt2), str(threads), *(["--cpu"] if cpu else [])]
    out = subprocess.run(command, input=json.dumps(texts), check=True, env=environment, capture_output=True, text=True).stdout
    return tuple(json.loads(out))


def child(which, gpt2, threads, clock):
    from tokenizers_compare import library_gpt2, tiktoken_gpt2

    texts = json.load(sys.stdin)
    if which == "tiktoken":
        encoding = tiktoken_gpt2(Path(gpt2))
        encoding.encode_ordinary_batch(texts[:10], num_threads=threads)
        start = clock()
        made = encoding.encode_ordinary_batch(texts, num_threads=threads)
        seconds = clock() - start
        tokens = sum(map(len, made))
    else:
        loaded = library_gpt2(Path(gpt2))
        loaded.encode_batch_fast(texts[:10], add_special_tokens=False)
        start = clock()
        made = loaded.encode_batch_fast(texts, add_special_tokens=False)
        seconds = clock() - start
        tokens = sum(len(e) for e in made)
    print(json.dumps([seconds, tokens]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("runner")
    parser.add_argument("gpt2", type=Path)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=32)
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    print(f"{'text':<24} {'threads':>7} {'ours':>8} {'tiktoken':>9} {'tokenizers':>11}   ratios")
    for path in args.files:
        texts, size = documents(path, args.megabytes * 1_000_000)
        for threads in map(int, args.threads.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                ways = [
                    lambda: ours(args.runner, args.gpt2, texts, threads, folder, args.cpu),
                    lambda: theirs("tiktoken", args.gpt2, texts, threads, args.cpu),
                    lambda: theirs("tokenizers", args.gpt2, texts, threads, args.cpu),
                ]
                # In turns, so that what else the machine does falls on all alike.
                results = [[way() for way in ways] for _ in range(args.times)]
            assert len({tokens for row in results for _, tokens in row}) == 1, "different numbers of tokens"
            speeds = [size / 1e6 / min(row[i][0] for row in results) for i in range(3)]
            ratios = f"{speeds[0] / speeds[1]:.1f}x tiktoken, {speeds[0] / speeds[2]:.1f}x tokenizers"
            print(f"{Path(path).name:<24} {threads:>7} {speeds[0]:>8.1f} {speeds[1]:>9.1f} {speeds[2]:>11.1f}   {ratios}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]), processor_time if "--cpu" in sys.argv else time.perf_counter)
    else:
        main()

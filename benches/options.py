"""Step times of a small Llama with one option of recent models, here and in PyTorch's compiled form, turn by turn, in fp32 on two threads.

    cargo build --release
    python3 benches/options.py [OPTION...]     # needs torch
"""

import glob
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYERS, WIDTH, HEADS, D_FF, VOCABULARY, LENGTH, ROWS, WINDOW = 4, 256, 4, 768, 2048, 256, 8, 64
# Steps before the first that counts, and steps that count.
WARMUP, STEPS = 4, 24

# By option, what the experiment sets.
OPTIONS = {
    "none": [],
    "qk_norm": ["model.qk_norm=head"],
    "window": [f"model.window={WINDOW}"],
    "softcap": ["model.logit_softcap=15"],
    "z_loss": ["model.z_loss=0.0001"],
    "relu2": ["model.gated=false", "model.activation=relu2"],
    "geglu": ["model.activation=gelu"],
    "both_norms": ["model.norm=both"],
    "biases": ["model.biases=qkv"],
    "muon": ["optimizer={muon: {lr: 0.02, weight_decay: 0.1, adamw: {lr: 1e-3}}}"],
}

EXPERIMENT = f"""
model: {{family: llama, layers: {LAYERS}, heads: {HEADS}, d_model: {WIDTH}, d_ff: {D_FF}, context_length: {LENGTH}, vocab_size: {VOCABULARY}}}
data: {{tokenizer: {{bytes: {{}}}}, train: {{builtin: {{corpus: stories}}}}, validation: {{fraction: 0.01}}}}
batch: {{sequences: {ROWS}, micro_batch: {ROWS}}}
train: {{steps: {WARMUP + STEPS}}}
optimizer: {{adamw: {{lr: 1e-3}}}}
eval: {{loss: null}}
"""


def runner_ms(option):
    """Median milliseconds of a step of runner."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "options.yaml")
        file.write_text(EXPERIMENT)
        sets = [part for value in OPTIONS[option] for part in ("--set", value)]
        command = [ROOT / "target/release/runner", "apply", file, "--threads", "2", "--runs", folder, "--quiet", *sets]
        subprocess.run(command, check=True, capture_output=True)
        lines = pathlib.Path(glob.glob(f"{folder}/*/metrics.jsonl")[0]).read_text().splitlines()
        times = [line["step_ms"] for line in map(json.loads, lines) if "step_ms" in line]
        return statistics.median(times[WARMUP:])


def torch_ms(option):
    """Median milliseconds of a step of the compiled model in this process."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.set_num_threads(2)
    torch.manual_seed(0)
    head = WIDTH // HEADS
    at = torch.arange(LENGTH)
    angles = at[:, None] * 10000.0 ** (-torch.arange(0, head, 2) / head)
    cos, sin = angles.cos(), angles.sin()
    distance = at[:, None] - at[None]
    window = (distance >= 0) & (distance < WINDOW)

    def rotated(x):
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def norm(width=WIDTH):
        return nn.RMSNorm(width, eps=1e-5)

    def linear(inputs, outputs, bias=False):
        return nn.Linear(inputs, outputs, bias=bias)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.ModuleList(linear(WIDTH, WIDTH, option == "biases") for _ in range(3))
            self.out, self.before = linear(WIDTH, WIDTH), nn.ModuleList([norm(), norm()])
            if option == "both_norms":
                self.after = nn.ModuleList([norm(), norm()])
            if option == "qk_norm":
                self.qk = nn.ModuleList([norm(head), norm(head)])
            if option != "relu2":
                self.gate = linear(WIDTH, D_FF)
            self.up, self.down = linear(WIDTH, D_FF), linear(D_FF, WIDTH)

        def attention(self, x):
            q, k, v = (project(x).view(-1, LENGTH, HEADS, head) for project in self.qkv)
            if option == "qk_norm":
                q, k = self.qk[0](q), self.qk[1](k)
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            masks = {"attn_mask": window} if option == "window" else {"is_causal": True}
            y = F.scaled_dot_product_attention(rotated(q), rotated(k), v, **masks)
            return self.out(y.transpose(1, 2).reshape(-1, LENGTH, WIDTH))

        def mlp(self, x):
            if option == "relu2":
                return self.down(F.relu(self.up(x)).square())
            gate = self.gate(x)
            gate = F.gelu(gate, approximate="tanh") if option == "geglu" else F.silu(gate)
            return self.down(gate * self.up(x))

        def forward(self, x):
            for place, part in enumerate((self.attention, self.mlp)):
                y = part(self.before[place](x))
                x = x + (self.after[place](y) if option == "both_norms" else y)
            return x

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.blocks = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm, self.head = norm(), linear(WIDTH, VOCABULARY)

        def forward(self, ids, targets):
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.norm(x))
            if option == "softcap":
                logits = 15 * torch.tanh(logits / 15)
            loss = F.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))
            return loss + 1e-4 * logits.logsumexp(-1).square().mean() if option == "z_loss" else loss

    model = Model()
    if option == "muon":
        matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
        others = [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]
        optimizers = [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=1e-3, fused=True)]
    else:
        optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)]
    compiled = torch.compile(model)
    rows = torch.randint(VOCABULARY, (ROWS, LENGTH + 1))
    ids, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
    times = []
    for _ in range(WARMUP + STEPS):
        started = time.perf_counter()
        loss = compiled(ids, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        loss.item()
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times[WARMUP:])


def main():
    if sys.argv[1:2] == ["--torch"]:
        print(torch_ms(sys.argv[2]))
        return
    print("option      runner, ms  PyTorch, ms  runner, ms", flush=True)
    for option in sys.argv[1:] or OPTIONS:
        first = runner_ms(option)
        peer = subprocess.run([sys.executable, __file__, "--torch", option], check=True, capture_output=True, text=True)
        print(f"{option:<12}{first:10.1f}{float(peer.stdout):13.1f}{runner_ms(option):12.1f}", flush=True)


if __name__ == "__main__":
    main()

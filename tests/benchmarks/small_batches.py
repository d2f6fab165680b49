"""How large should a batch be, and what else fits into its memory? `python tests/benchmarks/small_batches.py`.

A miniature of Marek et al. 2025 (arXiv 2507.07101). Writes data/measurements/small_batches.json; about 20 minutes on
one core. A `Transformer` of width 32 learns the next letter of 16,384 words, each seen once; a result is the mean loss
per token on 2,000 other words. Part 1 runs batches of 4 to 1,024 words under three rules, at the rate that two tuning
seeds choose. Part 2 measures the noise scale of McCandlish et al. 2018 (arXiv 1812.06162), in words, during runs of
Adam. Part 3 gives each way to train 2,000,000 bytes by the allocator's peak, and the largest micro-batch that fits.
"""

import argparse
import json
import platform
import time
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from statistics import median

import torch
from torch.nn import functional as F
from tqdm import tqdm

from course_utils import windows, words
from course_utils.memory import allocated
from course_utils.models import Transformer

WORDS, HELD_OUT = 16_384, 2_000
BATCHES = (4, 16, 64, 256, 1024)
TUNING, FINAL = (100, 101), tuple(range(8))
FIRST_RATES = {"adam, beta2 fixed": 2**-7, "adam, half-life fixed in tokens": 2**-7, "sgd": 2**-1}
OUT = Path(__file__).parents[2] / "data" / "measurements" / "small_batches.json"


def encode(some_words):
    """Letters a to z are 1 to 26; 0 comes before each word and after it. Targets of -100 are padding."""
    length = max(map(len, some_words)) + 1
    inputs = torch.zeros(len(some_words), length, dtype=torch.long)
    targets = torch.full((len(some_words), length), -100)
    for row, word in enumerate(some_words):
        letters = torch.tensor([ord(letter) - 96 for letter in word])
        inputs[row, 1 : len(word) + 1] = targets[row, : len(word)] = letters
        targets[row, len(word)] = 0
    return inputs, targets


def split(seed):
    """The held-out words, the same for every seed, and the training words of this one."""
    dictionary = words()
    order = torch.randperm(len(dictionary), generator=torch.Generator().manual_seed(0)).tolist()
    held_out, rest = order[:HELD_OUT], order[HELD_OUT:]
    again = torch.randperm(len(rest), generator=torch.Generator().manual_seed(seed)).tolist()
    return [dictionary[i] for i in held_out], [dictionary[rest[i]] for i in again[:WORDS]]


def token_loss(model, batch):
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


@torch.no_grad()
def held_out_loss(model, held_out):
    total, tokens = 0.0, 0
    for start in range(0, len(held_out), 500):
        batch = encode(held_out[start : start + 500])
        count = int((batch[1] >= 0).sum())
        total, tokens = total + token_loss(model, batch).item() * count, tokens + count
    return total / tokens


def make_optimizer(rule, parameters, rate, batch):
    if rule == "sgd":
        return torch.optim.SGD(parameters, lr=rate)
    beta2 = 0.95 ** (batch / 64) if "half-life" in rule else 0.95
    return torch.optim.Adam(parameters, lr=rate, betas=(0.9, beta2))


def up_and_down(updates):
    warm_up = max(1, updates // 20)
    return lambda done: min((done + 1) / warm_up, (updates - done) / updates)


def run(rule, batch, rate, seed):
    """One training run; its loss on the held-out words."""
    held_out, train = split(seed)
    torch.manual_seed(seed)
    model = Transformer(27)
    optimizer = make_optimizer(rule, model.parameters(), rate, batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, up_and_down(WORDS // batch))
    for start in range(0, WORDS, batch):
        optimizer.zero_grad()
        token_loss(model, encode(train[start : start + batch])).backward()
        optimizer.step()
        schedule.step()
    return held_out_loss(model, held_out)


def tune(rule, batch, runs):
    """The best learning rate by the tuning seeds; all tuning runs are appended to `runs`."""
    losses = {}

    def try_rate(rate):
        results = [run(rule, batch, rate, seed) for seed in TUNING]
        for seed, loss in zip(TUNING, results, strict=True):
            runs.append({"part": "tuning", "rule": rule, "batch": batch, "rate": rate, "seed": seed, "loss": loss})
        losses[rate] = sum(results) / len(results)
        losses[rate] = losses[rate] if losses[rate] == losses[rate] else float("inf")  # NaN: it diverged

    guess = FIRST_RATES[rule] * (batch / 64) ** 0.5
    first = 2.0 ** round(torch.tensor(guess).log2().item())
    for rate in (first / 2, first, first * 2):
        try_rate(rate)
    while (best := min(losses, key=losses.get)) in (min(losses), max(losses)):
        try_rate(best / 2 if best == min(losses) else best * 2)
    FIRST_RATES[rule] = best / (batch / 64) ** 0.5  # the next batch size starts near it
    return best


def part_one(runs):
    progress = tqdm([(rule, batch) for rule in FIRST_RATES for batch in BATCHES])
    for rule, batch in progress:
        progress.set_description(f"{rule}, {batch}")
        rate = tune(rule, batch, runs)
        for seed in FINAL:
            loss = run(rule, batch, rate, seed)
            runs.append({"part": "final", "rule": rule, "batch": batch, "rate": rate, "seed": seed, "loss": loss})
        yield


# Part 2.


def noise_scale(model, train, generator, count=128, b=8, n=8):
    """Estimates of |G|**2 and of the trace, averaged over windows; their ratio, and its 90 percent interval."""
    readings = []
    for _ in range(count):
        own = []
        for _ in range(n):
            drawn = torch.randint(len(train), (b,), generator=generator).tolist()
            loss = token_loss(model, encode([train[i] for i in drawn]))
            own.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
        small = torch.stack(own).square().sum(1).mean().item()
        large = torch.stack(own).mean(0).square().sum().item()
        readings.append(((n * large - small) / (n - 1), (small - large) / (1 / b - 1 / (n * b))))
    squares, traces = torch.tensor(readings, dtype=torch.float64).T
    again = torch.randint(count, (1000, count), generator=generator)
    low, high = torch.quantile(traces[again].mean(1) / squares[again].mean(1), torch.tensor([0.05, 0.95]).double())
    means = {"square": squares.mean().item(), "trace": traces.mean().item()}
    return {**means, "words": means["trace"] / means["square"], "low": low.item(), "high": high.item()}


def part_two(runs, rate):
    for seed in tqdm(FINAL[:3], desc="noise scale"):
        _, train = split(seed)
        torch.manual_seed(seed)
        model = Transformer(27)
        optimizer = make_optimizer("adam", model.parameters(), rate, 64)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, up_and_down(WORDS // 64))
        for done in range(WORDS // 64 + 1):
            if done in (0, 16, 64, 128, 256):
                found = noise_scale(model, train, torch.Generator().manual_seed(seed))
                runs.append({"seed": seed, "updates": done, **found})
            if done < WORDS // 64:
                optimizer.zero_grad()
                token_loss(model, encode(train[64 * done : 64 * done + 64])).backward()
                optimizer.step()
                schedule.step()


# Part 3.

BUDGET, SHORT = 2_000_000, 8_192


class AdamA:
    """Zhang et al. 2023 (arXiv 2305.19982): the gradient of each micro-batch goes into the moments and is freed."""

    def __init__(self, parameters, lr, betas=(0.9, 0.95), eps=1e-8):
        self.param_groups, self.betas, self.eps, self.updates = [{"lr": lr}], betas, eps, 0
        self.moments = {p: (torch.zeros_like(p), torch.zeros_like(p)) for p in parameters}
        self.hooks = [p.register_post_accumulate_grad_hook(self.fold) for p in self.moments]

    @torch.no_grad()
    def zero_grad(self):
        """The moments decay at the start of a window."""
        for first, second in self.moments.values():
            first.mul_(self.betas[0])
            second.mul_(self.betas[1])

    @torch.no_grad()
    def fold(self, p):
        first, second = self.moments[p]
        first.add_(p.grad, alpha=1 - self.betas[0])
        second.addcmul_(p.grad, p.grad, value=1 - self.betas[1])
        p.grad = None

    @torch.no_grad()
    def step(self):
        self.updates += 1
        first_part, second_part = (1 - beta**self.updates for beta in self.betas)
        for p, (first, second) in self.moments.items():
            p.addcdiv_(
                first, (second / second_part).sqrt_().add_(self.eps), value=-self.param_groups[0]["lr"] / first_part
            )


def adam(parameters, rate, batch):
    return torch.optim.Adam(parameters, lr=rate, betas=(0.9, 0.95 ** (batch / 64)))


def sgd(parameters, rate, batch):
    return torch.optim.SGD(parameters, lr=rate)


def adafactor(parameters, rate, batch):
    return torch.optim.Adafactor(parameters, lr=rate)


def adam_a(parameters, rate, batch):
    return AdamA(list(parameters), rate)


WAYS = {  # optimizer, first learning rate, whether it accumulates to 64 words, and what else is special
    "Adam, accumulation": (adam, 2**-6, True, ""),
    "Adam, checkpointing": (adam, 2**-6, True, "checkpointed"),
    "Adam, autocast to bfloat16": (adam, 2**-6, True, "autocast"),
    "Adam, all in bfloat16": (adam, 2**-6, True, "bfloat16"),
    "AdamA": (adam_a, 2**-6, True, ""),
    "Adafactor, accumulation": (adafactor, 2**-5, True, ""),
    "SGD, accumulation": (sgd, 2**0, True, ""),
    "Adam, update per micro-batch": (adam, 2**-7, False, ""),
    "SGD, update per micro-batch": (sgd, 2**-1, False, ""),
}


class Way:
    """One way to train: a model, its optimizer, and one update after another."""

    def __init__(self, name, seed, rate, micro):
        make, _, self.accumulates, special = WAYS[name]
        torch.manual_seed(seed)
        dtype = torch.bfloat16 if special == "bfloat16" else torch.float32
        self.model = Transformer(27, blocks=3, checkpointed=special == "checkpointed").to(dtype)
        self.context = torch.autocast("cpu", torch.bfloat16) if special == "autocast" else nullcontext()
        self.micro, self.words = micro, 64 if self.accumulates else micro
        self.optimizer = make(self.model.parameters(), rate, self.words)

    def update(self, some_words):
        """Micro-batches of up to `micro` words, weighted by their tokens (its letters and an end, for each word)."""
        self.optimizer.zero_grad()
        total = sum(map(len, some_words)) + len(some_words)
        for part in windows(some_words, self.micro):
            share = (sum(map(len, part)) + len(part)) / total
            with self.context:
                loss = token_loss(self.model, encode(part)) * share
            loss.backward()
        self.optimizer.step()


def peak(name, micro):
    """The allocator's peak in two updates on words of nine letters, model and optimizer included."""
    nine = [word for word in words() if len(word) == 9][:64]
    with allocated() as memory:
        way = Way(name, 0, 1e-3, micro)
        for _ in range(2):
            way.update(nine if way.accumulates else nine[:micro])
    return memory.peak


def largest_micro_batch(name):
    fits, too_many = 1, 65
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if peak(name, middle) <= BUDGET else (fits, middle)
    return fits


def train_in(name, seed, rate, micro):
    held_out, train = split(seed)
    way = Way(name, seed, rate, micro)
    updates = -(-SHORT // way.words)
    factor = up_and_down(updates)
    for done in range(updates):
        for group in way.optimizer.param_groups:
            group["lr"] = rate * factor(done)
        way.update(train[way.words * done : min(SHORT, way.words * (done + 1))])
    return held_out_loss(way.model, held_out)


def seconds_per_word(micros, rounds=9):
    """Processor time per word of a few updates, all ways in turn."""
    nine = [word for word in words() if len(word) == 9]
    spent = {name: [] for name in WAYS}
    for k in range(rounds):
        for name in WAYS:
            way = Way(name, 0, 1e-3, micros[name])
            start, done = time.process_time(), 0
            while done < 256:
                way.update(nine[done : done + way.words])
                done += way.words
            if k:  # the first round warms up
                spent[name].append((time.process_time() - start) / done)
    return spent


def part_three(table, runs):
    micros = {name: largest_micro_batch(name) for name in WAYS}
    spent = seconds_per_word(micros)
    for name in tqdm(WAYS, desc="equal memory"):
        base = median(spent["Adam, accumulation"])
        table.append({
            "way": name, "micro_batch": micros[name], "words_per_update": 64 if WAYS[name][2] else micros[name],
            "peak": peak(name, micros[name]), "time": median(spent[name]) / base, "seconds_per_word": spent[name],
        })  # fmt: skip
        losses, rate = {}, WAYS[name][1]
        rates = [rate / 2, rate, rate * 2]
        while rates:
            for rate in rates:
                results = [train_in(name, seed, rate, micros[name]) for seed in TUNING]
                for seed, loss in zip(TUNING, results, strict=True):
                    runs.append({"part": "tuning", "way": name, "rate": rate, "seed": seed, "loss": loss})
                mean = sum(results) / len(results)
                losses[rate] = mean if mean == mean else float("inf")
            best = min(losses, key=losses.get)
            rates = [best / 2] if best == min(losses) else [best * 2] if best == max(losses) else []
        for seed in FINAL[:6]:
            loss = train_in(name, seed, best, micros[name])
            runs.append({"part": "final", "way": name, "rate": best, "seed": seed, "loss": loss})
        yield


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--parts", default="123", help="which parts to run; the others are kept as they are in the file"
    )
    chosen = parser.parse_args().parts
    torch.set_num_threads(1)
    found = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    if "1" in chosen:
        found["batches"] = []
        for _ in part_one(found["batches"]):
            write(found)
    if "2" in chosen:
        found["noise_scale"] = []
        finals = [run for run in found["batches"] if run["part"] == "final" and run["batch"] == 64]
        part_two(found["noise_scale"], next(run["rate"] for run in finals if run["rule"].startswith("adam")))
        write(found)
    if "3" in chosen:
        found["budget"], found["equal_memory"], found["equal_memory_runs"] = BUDGET, [], []
        for _ in part_three(found["equal_memory"], found["equal_memory_runs"]):
            write(found)


def write(found):
    machine = {
        "torch": torch.__version__.split("+")[0],
        "machine": platform.machine(),
        "threads": 1,
        "dtype": "float32",
    }
    for runs in (found.get("batches", []), found.get("equal_memory_runs", [])):
        for one in runs:
            one["loss"] = one["loss"] if one["loss"] == one["loss"] else None  # NaN: it diverged
    text = json.dumps(
        {**found, "date": str(date.today()), **machine}, indent=None, separators=(", ", ": "), allow_nan=False
    )
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(text.replace("}, {", "},\n{") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Trains a small transformer to spell, letter by letter, and prints its loss on unseen words.

    python train.py --window 4 --log run.jsonl
    torchrun --nproc-per-node 2 -- train.py --log run.jsonl

An update uses a window of `--window` micro-batches of `--micro-batch` words each. On several ranks
every micro-batch is divided among the ranks (it must hold a word for each), so that an update holds
the same words on any number of them.
"""

import argparse
import json
import math
import os
import random
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from course_utils import Transformer, next_letters, windows
from course_utils.project import read_words

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--words", type=int, default=16160, help="how many words to learn from, at most")
    add("--epochs", type=int, default=1)
    add("--micro-batch", type=int, default=16, help="words in a micro-batch")
    add("--window", type=int, default=4, help="micro-batches in an update")
    add("--lr", type=float, default=0.04, help="the largest learning rate of the schedule")
    add("--clip", type=float, default=0.5, help="the largest norm of an update's gradient")
    add("--precision", choices=["float64", "float32", "float16"], default="float32", help="float16 means autocast")
    add("--checkpoint", metavar="FILE", help="where to save the run")
    add("--save-every", type=int, default=100, help="save when so many micro-batches have been read")
    add("--resume", action="store_true", help="continue from the checkpoint")
    add("--log", metavar="FILE", help="write each update's loss, and the final one, as lines of JSON")
    return parser.parse_args()


def micro_batches(words, options, epoch):
    """This rank's micro-batches of an epoch: shuffled, then sorted within every 64 words."""
    words = random.Random(epoch).sample(words, len(words))
    words = [word for part in windows(words, 64) for word in sorted(part, key=len)]
    return [next_letters(batch[RANK::WORLD]) for batch in windows(words, options.micro_batch)]


def train_epoch(model, batches, optimizer, scaler, schedule, options, done, save):
    """One pass over the micro-batches, of which the first `done` have been read already."""
    loss = 0.0
    for number, (inputs, targets) in enumerate(batches[done:], start=done + 1):
        with torch.autocast("cpu", torch.float16, enabled=options.precision == "float16"):
            loss = loss + F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        if number % options.window == 0:
            scaler.scale(loss).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), options.clip)
            scaler.unscale_(optimizer)
            if norm.isfinite():  # whatever the scaler and the optimizer would do
                scaler.step(optimizer)
                schedule.step()
            scaler.update()  # also without a step
            optimizer.zero_grad()
            log(options, loss=loss.item())
            loss = 0.0
        if number % options.save_every == 0:
            save(number)


def log(options, **numbers):
    if options.log and RANK == 0:
        with open(options.log, "a", encoding="utf-8") as file:
            file.write(json.dumps(numbers) + "\n")


def main():
    options = parse()
    if WORLD > 1:
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64 if options.precision == "float64" else torch.float32)
    to_learn, held_out = read_words()
    to_learn = to_learn[: options.words]

    raw = Transformer(27)
    model = DistributedDataParallel(raw) if WORLD > 1 else raw
    optimizer = torch.optim.Adam(raw.parameters(), lr=options.lr, betas=(0.9, 0.95))
    updates = options.epochs * math.ceil(len(to_learn) / (options.micro_batch * options.window))
    warm = max(1, updates // 20)  # updates until the learning rate falls
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min((k + 1) / warm, max(0.0, 1 - k / updates)))
    scaler = torch.amp.GradScaler("cpu")  # needed with float16, harmless without

    parts = {"model": raw, "optimizer": optimizer, "schedule": schedule, "scaler": scaler}
    first, done = 0, 0
    if options.resume:
        state = torch.load(options.checkpoint)
        first, done = state.pop("epoch"), state.pop("done")
        for name, saved in state.items():
            parts[name].load_state_dict(saved)

    for epoch in range(first, options.epochs):

        def save(number, epoch=epoch):
            if options.checkpoint and RANK == 0:
                state = {name: part.state_dict() for name, part in parts.items()}
                torch.save(state | {"epoch": epoch, "done": number}, f"{options.checkpoint}.new")
                Path(f"{options.checkpoint}.new").replace(options.checkpoint)

        batches = micro_batches(to_learn, options, epoch)
        train_epoch(model, batches, optimizer, scaler, schedule, options, done, save)
        done = 0

    inputs, targets = next_letters(held_out)
    with torch.no_grad():
        loss = F.cross_entropy(raw(inputs).flatten(0, 1), targets.flatten()).item()
    log(options, held_out=loss)
    if RANK == 0:
        print(f"held-out loss per letter: {loss:.3f}")
    if WORLD > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

"""Checkers on the zoo's loops, called as their READMEs say: `python tests/benchmarks/checkers.py [--write]`.

A bug is found if something is reported of the buggy loop that isn't reported of its fixed twin. The
recorded differences were read: of each loop that has any, at least one is about its bug. Read them
again after another version of a checker. TrainCheck takes a minute a pair, so it gets four.
"""

import json
import re
import subprocess
import sys
from datetime import date
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from inspect import getsource
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
from side_by_side import keep, quiet
from torch.nn.functional import cross_entropy, pad
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

import gradaudit
from course_utils.data import folder
from course_utils.source import function
from course_utils.zoo import ZOO

SLOW = {"traincheck": ("never-zeroed", "zeroed-before-the-step", "never-divided", "clipped-after-the-step")}


class Loop:
    """A loop of the zoo, buggy or fixed. Each public method is a checker, and returns what it reports."""

    def __init__(self, name: str, fixed: bool, place: str):
        text, self._place, props = ZOO[name].listing(fixed), Path(place, name, str(fixed)), ZOO[name].props.__name__
        module = getsource(sys.modules[ZOO[name].loop.__module__]).split("\n")
        lines = ["import torch", *(line for line in module if " import " in line), "torch.manual_seed(0)", text]
        lines += [f"from course_utils.zoo.props import {props}", f"made = {props}()", "model = made[0]"]
        self._script = self._place / f"{name}.py"
        self._place.mkdir(parents=True)
        self._script.write_text("\n".join([*lines, f"print(*loop({'model, *made[1:]' if ZOO[name].takes else ''}))\n"]))
        loop = function(text, ZOO[name].loop.__globals__)
        self._losses = loop(*ZOO[name].props()) if ZOO[name].takes else loop()

    def _begun(self) -> tuple[list, torch.Tensor, dict]:
        """After the first loss: the models with their optimizers, the batch; for digits also targets and loss."""
        next(self._losses)
        found = self._losses.gi_frame.f_locals
        values = [each for value in found.values() for each in (value if isinstance(value, list) else [value])]
        models = [each for each in values if isinstance(each, torch.nn.Sequential) and each[-1].weight.requires_grad]
        optimizers = [each for each in values if isinstance(each, Optimizer)]
        pairs = [(m, o) for m in models for o in optimizers if {*o.param_groups[0]["params"]} & {*m.parameters()}]
        inputs = next(found[name] for name in ("images", "letters", "real") if name in found)
        if inputs.is_floating_point():
            inputs = pad(inputs, (0, 16 if "memory" in found else 0)).to(models[0][-1].weight.dtype)
        more = {"targets": found["labels"], "loss_fn": cross_entropy} if "labels" in found else {}
        return pairs or [(model, [*optimizers, None][0]) for model in models], inputs, more

    def _printed(self, pattern: str, command: str, *words) -> set[str]:
        words = [Path(sys.executable).with_name(command), *words]
        done = subprocess.run(words, capture_output=True, text=True, cwd=self._place)
        assert "Traceback" not in done.stderr, done.stderr
        return {*re.findall(pattern, done.stdout)}

    def gradaudit(self):  # audit() around the loop
        with gradaudit.audit() as report:
            list(self._losses)
        return {finding.rule for finding in report.findings}

    def torch_audit(self):  # autopatch() before the loop, finish() after it
        create = import_module("torch_audit").autopatch
        auditors = [create(model, optimizer=o, every_n_steps=1) for model, o in self._begun()[0]]
        list(self._losses)
        return {finding.rule_id for auditor in auditors for finding in auditor.finish(report=False).findings}

    @torch.autocast("cpu", enabled=False)
    def torchtest2(self):  # check_model() with the first batch
        pairs, x, more = self._begun()
        reports = [import_module("torchtest2").check_model(model, x, optimizer=o, **more) for model, o in pairs]
        return {each.name for report in reports for each in report.failures + report.warnings}

    @torch.autocast("cpu", enabled=False)
    def guardtower(self):  # audit() with the first batch
        pairs, x, more = self._begun()
        loss = (lambda out: cross_entropy(out, more["targets"])) if more else lambda out: out.square().mean()
        audit = import_module("guardtower").audit
        reports = [audit(model, lambda model=model: loss(model(x)), optimizer=o, inputs=x) for model, o in pairs]
        return {each.check for report in reports for each in report.errors + report.warnings}

    def trainproof(self):  # `trainproof epoch` on a log of losses, gradient norms and learning rates
        steps, path = [], self._place / "log.jsonl"

        def note(o, *_):
            norm = torch.nn.utils.get_total_norm([p.grad for p in o.param_groups[0]["params"] if p.grad is not None])
            steps.append({"grad_norm": float(norm), "lr": o.param_groups[0]["lr"]})

        with register_optimizer_step_pre_hook(note):
            losses = [{"loss": loss} for loss in self._losses]
        path.write_text("\n".join(map(json.dumps, losses + steps)))
        return self._printed(r"\[(?:FAIL|WARN)\] (TP-[A-Z-]+)", "trainproof", "epoch", path)

    def torchfix(self):  # `torchfix` on the script
        return self._printed(r"TOR\d+", "torchfix", self._script)

    def torch_preflight(self):  # `torch-preflight check` on the script
        return self._printed(r"TG\d+", "torch-preflight", "check", self._script)

    def traincheck(self):  # `traincheck-check` with the invariants of the fixed twin's trace
        rules, trace = self._place.parent / "rules.json", self._place / "trace"
        collect = "", "traincheck-collect", "--models-to-track", "model", "--pyscript", self._script, "--output-dir"
        if not rules.exists():
            self._printed(*collect, self._place / "learned")
            self._printed("", "traincheck-infer", "-f", self._place / "learned", "-o", rules)
        self._printed(*collect, trace, "--invariants", rules)
        self._printed("", "traincheck-check", "-f", trace, "-i", rules, "-o", self._place / "checked")
        (summary,) = (self._place / "checked").rglob("violations_summary.json")
        return {each["display_name"] for each in json.loads(summary.read_text())["violations"]}


def main() -> None:
    rows = []
    for checker in (name for name in vars(Loop) if not name.startswith("_")):
        if find_spec(checker) is None:
            print(f"{checker} isn't installed, and is skipped")
            continue
        names, start = SLOW.get(checker, tuple(ZOO)), perf_counter()
        with TemporaryDirectory() as place, quiet():  # the fixed twin comes first: TrainCheck learns from it
            said = {(n, fixed): getattr(Loop(n, fixed, place), checker)() for n in names for fixed in (True, False)}
        row = {"checker": checker, "version": "" if checker == "gradaudit" else version(checker), "loops": len(names)}
        row["seconds"] = round((perf_counter() - start) / len(said), 2)
        row["found"] = {n: sorted(said[n, False] - said[n, True]) for n in names if said[n, False] - said[n, True]}
        row["fixed"] = {n: sorted(said[n, True]) for n in names if said[n, True]}
        print(checker, row["version"], f"found {len(row['found'])} of {len(names)}, fixed: {len(row['fixed'])}")
        rows.append(row)
    if "--write" in sys.argv:
        title = "Checkers on the loops of the zoo and on their fixed twins: tests/benchmarks/checkers.py"
        keep(folder() / "measurements" / "checkers.json", title, {"date": str(date.today()), "rows": rows})


if __name__ == "__main__":
    main()

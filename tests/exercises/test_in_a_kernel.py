"""check in a real kernel of Jupyter: whatever an answer does, the cell ends, and the cell after it runs clean."""

import time

import pytest

from exhaustive import mark

jupyter_client = pytest.importorskip("jupyter_client")

SET_UP = """
import time
from course_utils import check

def empty(*_):
    while True:
        pass

def sleeps(*_):
    time.sleep(4)
    print("late")

def prints(*_):
    while True:
        print("again")

def recursion(f, w, h):
    return recursion(f, w, h)

def leaves(*_):
    raise SystemExit
"""


class Kernel:
    """Runs cells, and says how each ended: "ok" or an error's name, its text, and the verdict that it shows."""

    def __init__(self, client, manager):
        self.client, self.manager = client, manager

    def run(self, code: str, interrupt: bool = False) -> tuple[str, str, str]:
        message = self.client.execute(code)
        text, verdict = "", ""
        while True:
            answer = self.client.get_iopub_msg(timeout=60)
            if answer["parent_header"].get("msg_id") != message:
                assert answer["msg_type"] == "status", f"something late: {answer['content']}"
                continue
            content = answer["content"]
            if interrupt and content.get("execution_state") == "busy":
                time.sleep(1.0)
                self.manager.interrupt_kernel()
            if content.get("execution_state") == "idle":
                break
            text += content.get("text", "") if answer["msg_type"] == "stream" else ""
            verdict += content["data"]["text/plain"] if answer["msg_type"] == "display_data" else ""
        reply = self.client.get_shell_msg(timeout=60)["content"]
        return reply.get("ename") or reply["status"], text, verdict


@pytest.fixture(scope="module")
def kernel():
    manager, client = jupyter_client.manager.start_new_kernel(startup_timeout=120)
    kernel = Kernel(client, manager)
    assert kernel.run(SET_UP)[:2] == ("ok", "")
    yield kernel
    client.stop_channels()
    manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("answer", mark(["empty", "prints", "sleeps"], but=["empty", "prints"]))
def test_after_an_endless_answer_the_next_cell_runs_clean(kernel, answer):
    ended, text, verdict = kernel.run(f"_ = check('slope', {answer}, limit=0.3)")
    assert (ended, text) == ("ok", "")
    assert verdict.startswith("Not yet right (endless). Stopped: it was still running after 0.3 seconds, in line ")
    assert kernel.run("print(6 * 7)") == ("ok", "42\n", "")


@pytest.mark.parametrize("answer", ["recursion", "leaves"])
def test_after_an_answer_that_raises_the_next_cell_runs_clean(kernel, answer):
    ended, text, verdict = kernel.run(f"_ = check('slope', {answer})")
    assert (ended, text) == ("ok", "")
    assert verdict.startswith("Not yet right (raises). Line ")
    assert kernel.run("print(6 * 7)") == ("ok", "42\n", "")


@pytest.mark.parametrize("answer", mark(["empty", "sleeps"], but=["empty"]))
def test_the_stop_button_stops_the_answer_and_nothing_else(kernel, answer):
    ended, text, verdict = kernel.run(f"_ = check('slope', {answer}, limit=60)", interrupt=True)
    assert (ended, text) == ("ok", "")
    assert verdict.startswith("Not done yet. Stopped by you, in line ")
    assert kernel.run("print(6 * 7)") == ("ok", "42\n", "")

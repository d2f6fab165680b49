"""check in a real kernel: whatever an answer does, its cell ends, and the next one runs."""

import time

import pytest

jupyter_client = pytest.importorskip("jupyter_client")

SET_UP = """
import time
from course_utils import check

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
    """Runs cells, and says how each ended: "ok" or an error's name, its text, its verdict."""

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


@pytest.mark.parametrize(
    ("answer", "limit", "said"),
    [
        ("prints", 0.3, "Not yet right (endless). Stopped: it was still running after 0.3 seconds, in line "),
        ("recursion", 20, "Not yet right (raises). Line "),
        ("leaves", 20, "Not yet right (raises). Line "),
        ("sleeps", 60, "Not done yet. Stopped by you, in line "),
    ],
)
def test_whatever_an_answer_does_the_next_cell_runs_clean(kernel, answer, limit, said):
    ended, text, verdict = kernel.run(f"_ = check('slope', {answer}, limit={limit})", interrupt=limit == 60)
    assert (ended, text) == ("ok", "")
    assert verdict.startswith(said)
    assert kernel.run("print(6 * 7)") == ("ok", "42\n", "")

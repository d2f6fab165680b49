"""Kernels that start at once: forked from a process that has imported torch, which is most of the work of a short run.

Each pytest that runs notebooks has one such process, which imports and does nothing else. To nbval a kernel is a
command like any other: this file, which asks for a fork, hands on its output and its signals, and ends with the kernel.
"""

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory


def use() -> None:
    """From now on, nbval's kernels are forked."""
    import ipykernel.kernelspec

    ordinary = ipykernel.kernelspec.get_kernel_dict

    def get_kernel_dict(*args, **kwargs):
        command = [sys.executable, "-IS", __file__, _address(), "-f", "{connection_file}"]
        return {**ordinary(*args, **kwargs), "argv": command}

    ipykernel.kernelspec.get_kernel_dict = get_kernel_dict


@cache
def _address() -> str:
    """Where kernels are to be had. The first time, this starts the process that forks them."""
    folder = TemporaryDirectory()
    address = str(Path(folder.name) / "kernels")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        fd = listener.fileno()
        environment = {**os.environ, "JPY_PARENT_PID": str(os.getpid())}  # as for every kernel that is not run by hand
        server = subprocess.Popen(
            [sys.executable, __file__, str(fd)], stdin=subprocess.PIPE, pass_fds=[fd], env=environment
        )

    def end() -> None:
        server.stdin.close()
        server.wait()
        folder.cleanup()

    atexit.register(end)
    return address


def _serve(listener: socket.socket) -> None:
    """Forks a kernel at each request, until the process that started this one closes its input or is gone."""
    del sys.path[0]  # the folder of this file
    gc.disable()
    import ipykernel.kernelapp
    import ipykernel.zmqshell
    import torch._dynamo  # what the first optimizer of a notebook imports  # noqa: F401

    gc.freeze()
    gc.enable()
    kernels = set()
    while sys.stdin not in (ready := select.select([listener, sys.stdin], [], [], 1)[0]):
        if ready:
            connection, _ = listener.accept()
            kernel = os.fork()
            if kernel == 0:
                listener.close()
                _become(connection)
                ipykernel.kernelapp.launch_new_instance()
                os._exit(0)
            kernels.add(kernel)
            connection.close()
        kernels -= {kernel for kernel in kernels if os.waitpid(kernel, os.WNOHANG)[0]}
    for kernel in kernels:
        os.kill(kernel, signal.SIGKILL)
        os.waitpid(kernel, 0)


def _become(connection: socket.socket) -> None:
    """Takes over the arguments, the environment, the folder and the output of the command that asked for a kernel."""
    request, fds, _, _ = socket.recv_fds(connection, 2**20, 3)
    while not request.endswith(b"\n"):
        request += connection.recv(2**20)
    arguments, environment, folder = json.loads(request)
    os.setsid()
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
        os.close(fd)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    connection.sendall(str(os.getpid()).encode())

    def end_with_it():
        connection.recv(1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end_with_it, daemon=True).start()


def _ask(address: str, arguments: list[str]) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        request = json.dumps([arguments, dict(os.environ), os.getcwd()]).encode() + b"\n"
        socket.send_fds(connection, [request], [0, 1, 2])
        kernel = int(connection.recv(20))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.kill(kernel, number))
        connection.recv(1)  # nothing comes, until the kernel has ended


if __name__ == "__main__":
    if len(sys.argv) == 2:
        _serve(socket.socket(fileno=int(sys.argv[1])))
    else:
        _ask(sys.argv[1], sys.argv[2:])

"""Python processes that start at once: forked from one that has imported torch, most of the work of a short run.

All workers of a pytest share that process, which imports and does nothing else, and begins when it is first needed.
To its caller, a fork is a command like any other: ask_for_fork.py, which hands on its output and its signals, and ends
with it and with its status. nbval's kernels are forks, and so is what they start, and so are the workers of xdist; the
fixture `quick_python` makes `sys.executable` a command that starts forks, for tests that run scripts.
"""

import atexit
import builtins
import gc
import json
import multiprocessing
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import ask_for_fork
from ask_for_fork import FOLDER

IMPORTED = (
    "ipykernel.kernelapp",
    "ipykernel.zmqshell",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "matplotlib.pyplot",
)
INLINE = "module://matplotlib_inline.backend_inline"  # where kernels draw


def use() -> None:
    """From now on, nbval's kernels are forked, and so is the process that multiprocessing forks its ranks from."""
    import ipykernel.kernelspec

    ordinary = ipykernel.kernelspec.get_kernel_dict
    command = executable()
    if sys.executable == command:  # in a worker: only what asks for forks gets them
        sys.executable = sys.orig_argv[0]

    def get_kernel_dict(*args, **kwargs):
        return {**ordinary(*args, **kwargs), "argv": [command, "-m", "ipykernel_launcher", "-f", "{connection_file}"]}

    ipykernel.kernelspec.get_kernel_dict = get_kernel_dict
    multiprocessing.set_executable(command)


@cache
def executable() -> str:
    """A command that does what Python does, in a fork. The first time it is called, the process that forks starts."""
    if folder := os.environ.get(FOLDER):
        return str(Path(folder) / "python")
    folder = TemporaryDirectory(ignore_cleanup_errors=True)
    command, address = Path(folder.name) / "python", Path(folder.name) / "forks"
    temporary = Path(folder.name) / "tmp"  # of the forks, of which kernels and workers leave without tidying up
    temporary.mkdir()
    os.environ["TMPDIR"] = str(temporary)
    ask = f'"{sys.executable}" -IS "{ask_for_fork.__file__}" "{address}"'
    command.write_text(f'#!/bin/sh\nexec {ask} "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen()
    python, servers = [sys.executable, __file__, str(listener.fileno())], []

    def start() -> None:
        select.select([listener], [], [])
        environment = {**os.environ, "JPY_PARENT_PID": str(os.getpid())}  # as for every kernel that is not run by hand
        fds = [listener.fileno()]
        servers.append(subprocess.Popen(python, stdin=subprocess.PIPE, pass_fds=fds, env=environment))

    def end() -> None:
        for server in servers:
            server.stdin.close()
            server.wait()
        folder.cleanup()

    threading.Thread(target=start, daemon=True).start()
    atexit.register(end)
    os.environ[FOLDER] = folder.name
    return str(command)


def _serve(listener: socket.socket) -> Callable[[], None]:
    """Forks at each request, until the process that started this one closes its input or is gone.

    Returns what remains to be done: by a fork, what it was asked for, and nothing by this process.
    """
    del sys.path[0]  # the folder of this file
    gc.disable()
    for module in IMPORTED:
        import_module(module)
    _leave_at_once()
    gc.freeze()
    gc.enable()
    one_ended, ended = socket.socketpair()
    ended.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ended.fileno())
    forks = {}
    while sys.stdin not in (ready := select.select([listener, sys.stdin, one_ended], [], [])[0]):
        if one_ended in ready:
            one_ended.recv(4096)
            for fork in list(forks):
                same, status = os.waitpid(fork, os.WNOHANG)
                if same:
                    with forks.pop(fork) as connection, suppress(OSError):  # where the one who asked is gone
                        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
        if listener in ready:
            connection, _ = listener.accept()
            if (fork := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in (listener, one_ended, ended, *forks.values()):
                    other.close()
                return _become(connection)
            forks[fork] = connection
    for fork in forks:
        os.kill(fork, signal.SIGKILL)
        os.waitpid(fork, 0)
    return lambda: None


def _leave_at_once() -> None:
    """No fork takes torch apart when it ends, or adds up how long it compiled: that takes longer than a fork."""
    for finalizer in weakref.finalize._registry:
        finalizer.atexit = False
    atexit.unregister(sys.modules["torch._dynamo.utils"].dump_compile_times)


def _become(connection: socket.socket) -> Callable[[], None]:
    """Takes over the arguments, the environment, the folder and the open files of the command that asked for a fork."""
    connection = socket.socket(fileno=_above_all(connection.detach()))
    size = int.from_bytes(connection.recv(8, socket.MSG_WAITALL))
    request, fds, _, _ = socket.recv_fds(connection, size, 250)
    while len(request) < size:
        request += connection.recv(size - len(request))
    arguments, environment, folder, numbers = json.loads(request)
    os.setsid()
    fds = [_above_all(fd) for fd in fds]
    for target, fd in zip(numbers, fds, strict=True):
        os.dup2(fd, target)
        os.close(fd)
    os.chdir(folder)
    at_once = bool(environment.get("PYTHONUNBUFFERED"))
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty(), write_through=at_once)
    old, new = (e.get("PYTHONPATH", "").split(os.pathsep) for e in (os.environ, environment))
    sys.path[:] = [*filter(None, new), *(entry for entry in sys.path if entry not in old)]
    os.environ.clear()
    os.environ.update(environment)
    if backend := environment.get("MPLBACKEND") or (INLINE if "ipykernel_launcher" in arguments[:2] else None):
        sys.modules["matplotlib"].rcParams["backend"] = backend  # which it would read when it is imported
    sys.executable = str(Path(environment[FOLDER]) / "python")
    multiprocessing.set_executable(sys.executable)
    connection.sendall(str(os.getpid()).encode())

    def end_with_it():
        if not connection.recv(1):
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end_with_it, daemon=True).start()
    return lambda: _python(arguments)


def _above_all(fd: int) -> int:
    """The same file under a number that no command uses."""
    import fcntl

    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 500)
    os.close(fd)
    return moved


def _python(arguments: list[str]) -> None:
    """Does what `python` does with these arguments: -m, -c or a script."""
    while arguments[0].startswith("-") and arguments[0] not in ("-m", "-c"):
        arguments = arguments[1 + (arguments[0] == "-X") :]
    sys.modules["__main__"] = main = ModuleType("__main__")
    main.__builtins__ = builtins
    try:
        if arguments[0] == "-m":
            if arguments[1] == "ipykernel_launcher":
                import ipykernel.kernelapp

                sys.argv[1:] = arguments[2:]
                ipykernel.kernelapp.launch_new_instance()
            else:
                sys.path.insert(0, os.getcwd())
                sys.argv = arguments[1:]
                runpy._run_module_as_main(arguments[1])
        elif arguments[0] == "-c":
            sys.path.insert(0, "")
            sys.argv = ["-c", *arguments[2:]]
            exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
        else:
            sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
            sys.argv = arguments
            main.__file__, main.__cached__ = arguments[0], None
            exec(compile(Path(arguments[0]).read_bytes(), arguments[0], "exec"), main.__dict__)
        status = 0
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        if status and not isinstance(ending.code, int):
            print(ending.code, file=sys.stderr)
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__.tb_next)  # without the line above
        status = 1
    threading._shutdown()  # the end of Python, but for taking a large heap apart
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            file.flush()
    os._exit(status & 0xFF)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))()

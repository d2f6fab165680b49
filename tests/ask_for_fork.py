"""What stands for a fork of forked_python.py to its caller. It imports little, since it starts for each of them."""

import json
import os
import signal
import socket
import sys

FOLDER = "COURSE_TESTS_FORKS"  # names the folder of the process that forks, for the workers
HANDED_ON = signal.SIGINT, signal.SIGTERM


def ask(address: str, arguments: list[str]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)  # until there is a fork to hand them on to
    with socket.socket(socket.AF_UNIX) as connection:
        numbers = []
        for number in map(int, os.listdir("/proc/self/fd")):
            try:
                if number != connection.fileno() and os.get_inheritable(number):
                    numbers.append(number)
            except OSError:  # that of the list itself
                pass
        connection.connect(address)
        environment = {**os.environ, FOLDER: os.path.dirname(address)}
        request = json.dumps([arguments, environment, os.getcwd(), numbers]).encode()
        connection.sendall(len(request).to_bytes(8))
        socket.send_fds(connection, [request], numbers)
        fork = int(connection.recv(20))
        for number in HANDED_ON:
            signal.signal(number, lambda number, _: os.kill(fork, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDED_ON)
        status = int(connection.recv(20) or -signal.SIGKILL)  # when the fork has ended
    if status < 0:
        if status != -signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    ask(sys.argv[1], sys.argv[2:])

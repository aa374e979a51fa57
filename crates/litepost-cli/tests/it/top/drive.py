"""Runs a program on a real terminal of 80x24, types at it, and says what the terminal showed and how it was left.

usage: drive.py STEPS PROGRAM ARGUMENT ...
STEPS is JSON: {"see": TEXT} waits until TEXT stands on the screen, {"type": TEXT} types, {"signal": NUMBER} sends a
signal. The answer is JSON: what was written, the exit code, whether the terminal's settings are what they were.
"""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

PATIENCE_S = 60
steps, program = json.loads(sys.argv[1]), sys.argv[2:]
primary, secondary = pty.openpty()
fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
before = termios.tcgetattr(secondary)
child = os.fork()
if child == 0:
    os.setsid()
    fcntl.ioctl(secondary, termios.TIOCSCTTY, 0)
    for stream in range(3):
        os.dup2(secondary, stream)
    os.execv(program[0], program)

drawn = b""


def read_on():
    """Reads what there is, waiting a moment for it."""
    global drawn
    if select.select([primary], [], [], 0.05)[0]:
        drawn += os.read(primary, 65536)


def screen():
    """The screen as a person sees it: only what changes is written, so the text has to be put together."""
    lines, row, column = [[" "] * 80 for _ in range(24)], 0, 0
    pieces = re.findall(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b[78=>]|([^\x1b])", drawn.decode(errors="replace"))
    for numbers, command, text in pieces:
        if command in ("H", "f"):
            at = [int(number or 1) for number in (numbers or "1;1").split(";")]
            row, column = at[0] - 1, at[1] - 1
        elif command == "J" or (command == "h" and numbers == "?1049"):
            lines = [[" "] * 80 for _ in range(24)]
        elif text == "\n":
            row, column = min(row + 1, 23), 0
        elif text and text != "\r" and row < 24 and column < 80:
            lines[row][column] = text
            column += 1
    return "\n".join("".join(line) for line in lines)


def see(text):
    deadline = time.monotonic() + PATIENCE_S
    while text not in screen():
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            sys.exit(f"never saw {text!r}; the screen is\n{screen()}")
        read_on()


for step in steps:
    if "see" in step:
        see(step["see"])
    elif "type" in step:
        os.write(primary, step["type"].encode())
    else:
        os.kill(child, step["signal"])
deadline = time.monotonic() + PATIENCE_S
while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
    if time.monotonic() > deadline:
        os.kill(child, signal.SIGKILL)
        sys.exit(f"did not end; drew {drawn!r}")
    read_on()
for _ in range(4):
    read_on()
print(
    json.dumps(
        {
            "drawn": drawn.decode(errors="replace"),
            "code": os.waitstatus_to_exitcode(ended[1]),
            "restored": termios.tcgetattr(secondary) == before,
        }
    )
)

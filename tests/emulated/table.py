#!/usr/bin/env python3
"""Writes a source that includes a kernel source and names its entry points, so that the driver finds them.

usage: table.py KERNELS.cu OUT.cpp COMPILER...      COMPILER...: the command that compiles, with its flags

Entry points are read after preprocessing, so those that a macro writes are found too.
"""
import re
import subprocess
import sys

ENTRY = re.compile(r'extern\s+"C"\s+RUNNER_ENTRY\s+(?:RUNNER_BOUNDS\(([^()]*)\)\s*)?void\s+(?:RUNNER_BOUNDS\(([^()]*)\)\s*)?(\w+)\s*\(')


def main():
    source, out, *compiler = sys.argv[1:]
    command = [*compiler, "-DRUNNER_ENTRIES", "-E", "-P", "-x", "c++", source]
    text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    lines = [f'#include "{source}"', "#include \"device.h\"", ""]
    for before, after, name in ENTRY.findall(text):
        # Bounds may be constants of the source: they are read where it is included. (threads, blocks per multiprocessor)
        bounds = before or after or str(1024)
        lines.append(f'static const emulated::Registered entry_{name}("{name}", {name}, {{{bounds}}});')
    with open(out, "w") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

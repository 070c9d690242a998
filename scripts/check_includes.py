#!/usr/bin/env python3
"""Checks that includes go one way through the layers, that libraries stay behind the layer that wraps them, that a
source includes its own header first (which proves that header self-contained) and that headers have their guard.

    scripts/check_includes.py [ROOT]      ROOT: the source tree (default: this one)

Prints one line per violation and exits with 1 when there is one.
"""

import pathlib
import re
import sys

# What each layer may include, besides itself. tests, bench and cli may include anything.
BELOW = {
    "runtime/base": [],
    "runtime/services": ["runtime/base"],
    "runtime/cuda": ["runtime/base", "runtime/services"],
    "planner": ["runtime/base"],
    "transport": ["runtime/base", "runtime/services", "planner"],
    "runtime/exchange": ["runtime/base", "runtime/services", "planner", "transport"],
    "trainer": ["runtime/base", "runtime/services", "planner", "transport", "runtime/exchange"],
    "worker": ["runtime/base", "runtime/services", "planner", "transport", "runtime/exchange"],
}
TOP = ["cli", "bench", "tests"]

# Libraries that only some folders may include. The patterns match the whole name between the angle brackets.
WRAPPED = {
    r"(ucp|uct|ucs|ucm)/.*": ["transport"],
    r"mpi\.h": ["runtime/services", "runtime/exchange", *TOP],
    r"(cuda|cuda_runtime|cuda_runtime_api|nccl)\.h": ["runtime/cuda", "tests"],
    # The planner is pure: no sockets, threads, clocks or logging.
    r"(boost/asio|sys/socket|netinet/|spdlog/).*|thread|chrono": [*(set(BELOW) - {"planner"}), *TOP],
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def layer_of(path):
    for layer in sorted([*BELOW, *TOP], key=len, reverse=True):
        if path.startswith(layer + "/"):
            return layer
    return None


def violations(root):
    for folder in ["runtime", "planner", "transport", "trainer", "worker", *TOP]:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix not in (".h", ".cc", ".cu") or not file.is_file():
                continue
            name = file.relative_to(root).as_posix()
            layer = layer_of(name)
            if layer is None:
                yield f"{name}: lies in no layer, move it into one of: {' '.join([*BELOW, *TOP])}"
                continue
            lines = file.read_text().splitlines()
            includes = [(number, match) for number, line in enumerate(lines, 1) if (match := INCLUDE.match(line))]
            for number, match in includes:
                reason = refused(layer, match[1], match[2])
                if reason:
                    yield f"{name}:{number}: {reason}"
            own = file.with_suffix(".h")
            if file.suffix != ".h" and own.exists():
                first = includes[0][1][2] if includes else "nothing"
                if first != own.relative_to(root).as_posix():
                    yield f"{name}: includes {first} first, must be its own header"
            if file.suffix == ".h" and "#pragma once" not in lines:
                yield f"{name}: lacks #pragma once"


def refused(layer, bracket, included):
    if bracket == "<":
        for pattern, allowed in WRAPPED.items():
            if re.fullmatch(pattern, included) and layer not in allowed:
                return f"<{included}> in {layer}: only {', '.join(sorted(allowed))} may include it"
        return None
    if included.startswith(".") or "/" not in included:
        return f'"{included}": include by the path from the root'
    target = layer_of(included)
    if target is None:
        return f'"{included}" is in no layer: include libraries with <>'
    if layer not in TOP and target != layer and target not in BELOW[layer]:
        return f'{layer} includes "{included}": {layer} may include {", ".join(BELOW[layer]) or "only itself"}'
    return None


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    found = list(violations(root))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

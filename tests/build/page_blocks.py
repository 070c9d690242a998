"""Writes what a page of docs tells the reader to write: PAGE FOLDER.

Blocks that name a file (```cpp file=NAME) become that file, the `sh` block becomes commands.sh, and the `text` block, what the
commands print, becomes expected.txt.
"""
import pathlib
import re
import sys

page, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
names = {"sh": "commands.sh", "text": "expected.txt"}
written = set()
for kind, name, body in re.findall(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", page.read_text(), re.M | re.S):
    name = name or names.get(kind)
    if name is None:
        continue
    if name in written:
        sys.exit(f"{page}: two blocks give {name}; name them apart")
    written.add(name)
    (folder / name).write_text(body)
missing = set(names.values()) - written
if missing:
    sys.exit(f"{page}: no block gives {', '.join(sorted(missing))}")

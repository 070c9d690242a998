"""A benchmark that is asked for a series that it does not have measures nothing, and says which there are. Needs no GPU.

    series_test.py KNOWN_SERIES COMMAND..."""
import subprocess
import sys

known, command = sys.argv[1], sys.argv[2:]
done = subprocess.run([*command, "--series", known, "--series", "TYPO"], capture_output=True, text=True, timeout=50, check=False)
if done.returncode != 2 or done.stderr.count("\n") != 1 or '"TYPO"' not in done.stderr or f'"{known}"' not in done.stderr:
    sys.exit(f"FAILED: exit code {done.returncode}\n{done.stdout}{done.stderr}")

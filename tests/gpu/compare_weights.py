"""Holds two .safetensors files of the same tensors, and two losses, against each other.

usage: compare_weights.py A B TOLERANCE LOSS_A LOSS_B
Prints the worst tensor; exits 1 if its largest difference is above TOLERANCE times its largest
value, or the losses differ by more than that. Needs nothing but Python.
"""

import array
import json
import struct
import sys


def read(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    tensors = {}
    for name, place in header.items():
        if name == "__metadata__":
            continue
        begin, end = place["data_offsets"]
        tensors[name] = array.array("f", data[begin:end])
    return tensors


def main():
    first, second = read(sys.argv[1]), read(sys.argv[2])
    tolerance, loss_a, loss_b = (float(word) for word in sys.argv[3:6])
    if first.keys() != second.keys():
        sys.exit("the files hold different tensors")
    worst, where = 0.0, ""
    for name, values in first.items():
        largest = max(max(abs(v) for v in values), 1e-30)
        apart = max(abs(a - b) for a, b in zip(values, second[name])) / largest
        if not apart <= worst:
            worst, where = apart, name
    loss = abs(loss_a - loss_b) / abs(loss_a)
    print(f"weights {worst:.2e} ({where}), loss {loss:.2e}")
    if not (worst <= tolerance and loss <= tolerance):
        sys.exit(1)


main()

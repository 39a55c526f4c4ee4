"""An environment of a user's own: a sum that must be said, with as many turns as it takes."""

import os
import time

import groupwise


class Sum:
    alphabet = "0123456789+=\n"

    def __init__(self, fault="", on="2+2"):
        self.fault, self.on = fault, on
        self.answer, self.turn = "", 0

    def samples(self, split):
        pairs = [(a, b) for a in range(5) for b in range(5)]
        keep = [(a, b) for a, b in pairs if ((a * 5 + b) % 4 == 0) == (split == "heldout")]
        return [groupwise.Sample(f"{a}+{b}", f"{a}+{b}=\n", str(a + b)) for a, b in keep]

    def reset(self, sample):
        self.answer, self.turn, self.key = sample.answer, 0, sample.key

    def step(self, text):
        self.turn += 1
        if self.key == self.on and self.turn == 2:
            if self.fault == "raise":
                raise ValueError("planted")
            if self.fault == "hang":
                time.sleep(600)
            if self.fault == "crash":
                os.abort()
            if self.fault == "garbage":
                return {"nothing": 1}
            if self.fault == "flood":
                print("x" * 10**7)
                return "1" * (1 << 21), 0.0, False
            if self.fault == "exit":
                raise SystemExit(3)
            if self.fault == "leave":
                os.system("sleep 600 &")
        said = text.strip()
        return ("1\n" if said < self.answer else "0\n"), float(said == self.answer), said == self.answer

"""Trains a GPT-2 of random weights on random tokens with PyTorch on one GPU, as fast as it goes:
compiled, bf16 autocast, scaled_dot_product_attention, fused AdamW, head not tied.

usage: gpt2_torch.py LAYERS HIDDEN HEADS MICROBATCH_SIZE MICROBATCHES
Prints "tokens_per_s N", the median of the steps.
"""

import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional

SEQUENCE, VOCABULARY = 1024, 50257


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        b, t, c = x.shape
        parts = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, hidden, heads):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, hidden), nn.Embedding(SEQUENCE, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, VOCABULARY, bias=False)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def main():
    layers, hidden, heads, size, microbatches = (int(word) for word in sys.argv[1:6])
    torch.set_float32_matmul_precision("high")
    with torch.device("cuda"):
        network = Gpt(layers, hidden, heads)
    compiled = torch.compile(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(VOCABULARY, (size, SEQUENCE + 1), device="cuda")
    seconds = []
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(microbatches):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = compiled(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
            (loss / microbatches).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    print(f"torch {torch.__version__}, loss {loss.item():.3f}")
    print(f"tokens_per_s {microbatches * size * SEQUENCE / statistics.median(seconds[3:]):.0f}")


main()

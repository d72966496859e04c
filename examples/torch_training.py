"""Train a small transformer in PyTorch and have its matrix products computed by toprung: one line, the same losses.

python examples/torch_training.py                          # on a GPU
python examples/torch_training.py --device cpu --steps 3 --own # on a CPU, where toprung's kernels run through OpenCL
"""

import argparse
import sys

try:
    import torch

    import toprung.torch
except ImportError:
    sys.exit("this example needs PyTorch: pip install torch")

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="PyTorch's device")
parser.add_argument("--own", action="store_true", help="toprung's kernels also where PyTorch's should be as fast")
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--steps", type=int, default=10)
given = parser.parse_args()


def losses(steps):
    """Train from the same weights on the same data; return the losses."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(given.width, 4, 4 * given.width, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(given.device)
    x = torch.randn(8, 64, given.width, device=given.device)
    optimizer, found = torch.optim.AdamW(model.parameters(), 1e-3), []
    for _ in range(steps):
        loss = (model(x) - x.roll(1, 1)).square().mean()  # each place is to say what stands before it
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


theirs = losses(given.steps)
toprung.torch.enable(device_types=(given.device,), own=given.own)  # this is the line
ours = losses(given.steps)
print(toprung.torch.report())
print(f"loss after {given.steps} steps: PyTorch {theirs[-1]:.6f}, with toprung {ours[-1]:.6f}")
sys.exit(abs(ours[-1] - theirs[-1]) > 1e-3 * theirs[-1])

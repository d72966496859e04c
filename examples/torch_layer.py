"""A linear layer for PyTorch whose products, forwards and backwards, are toprung's; and a check that it learns what PyTorch's does.

    python examples/torch_layer.py                            # on the GPU if PyTorch has one, else on the CPU
    python examples/torch_layer.py --on cpu --device pocl     # CPU tensors, multiplied on a device that toprung finds

CUDA tensors stay where they are, on PyTorch's current stream. CPU tensors are multiplied where toprung finds it best (without a
GPU, by NumPy's BLAS) or on ``--device``.
"""

from __future__ import annotations

import argparse
import itertools
import sys

import toprung

try:
    import torch
except ImportError:
    sys.exit("this example needs PyTorch: pip install torch")


class Linear(torch.nn.Module):
    """torch.nn.Linear with toprung's products: the same parameters, names, shapes and initial values.

    Parameters
    ----------
    inputs, outputs : sizes of the last dimension of what comes in and goes out; dimensions before it are kept
    options : of ``toprung.matmul``: precision, own, device
    """

    def __init__(self, inputs: int, outputs: int, bias: bool = True, **options: object) -> None:
        super().__init__()
        like = torch.nn.Linear(inputs, outputs, bias)
        self.weight, self.bias, self.options = like.weight, like.bias, options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x · Wᵀ + b. The transpose is not copied, and gradients are toprung's products, too."""
        result = toprung.matmul(x, self.weight.T, **self.options)
        return result if self.bias is None else result + self.bias


def network(layer: type, sizes: list[int], **options: object) -> torch.nn.Sequential:
    """Layers with tanh between them."""
    parts: list[torch.nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        parts += [layer(inputs, outputs, **options), torch.nn.Tanh()]
    return torch.nn.Sequential(*parts[:-1])


def gradients(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Of the mean squared error, by the parameters and by x."""
    x = x.detach().requires_grad_()
    loss = torch.nn.functional.mse_loss(net(x), y)
    return list(torch.autograd.grad(loss, [*net.parameters(), x]))


def error(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """Largest relative error of a gradient in the Frobenius norm."""
    return max(float((f.double() - e).norm() / e.norm()) for f, e in zip(found, exact, strict=True))


def main() -> int:
    """Compare gradients, train both, and say where the products ran."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--on", choices=("cpu", "cuda"), help="where the tensors lie; default: cuda if there is one")
    parser.add_argument("--batch", type=int, default=1024, help="rows of the input (default %(default)s)")
    parser.add_argument("--width", type=int, default=512, help="units of a hidden layer (default %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="steps of training (default %(default)s)")
    parser.add_argument("--device", help="toprung's device for CPU tensors, as toprung devices lists it")
    parser.add_argument("--precision", default="auto", choices=("auto", "fp32", "fp32x", "tf32"))
    parser.add_argument("--own", action="store_true", help="only kernels of toprung's own")
    words = parser.parse_args()
    on = words.on or ("cuda" if torch.cuda.is_available() else "cpu")
    options = {"precision": words.precision, "own": words.own, "device": words.device if on == "cpu" else None}

    torch.manual_seed(0)
    sizes = [64, words.width, words.width, 16]
    ours, theirs = network(Linear, sizes, **options).to(on), network(torch.nn.Linear, sizes).to(on)
    theirs.load_state_dict(ours.state_dict())  # the names are the same
    x, y = torch.randn(words.batch, sizes[0], device=on), torch.randn(words.batch, sizes[-1], device=on)

    double = network(torch.nn.Linear, sizes).to(on)
    double.load_state_dict(ours.state_dict())
    exact = gradients(double.double(), x.double(), y.double())
    mine, torchs = error(gradients(ours, x, y), exact), error(gradients(theirs, x, y), exact)
    print(toprung.last_receipt())
    print(f"gradients beside float64, largest relative error: toprung {mine:.1e}, torch {torchs:.1e}")

    losses = []
    for net in (ours, theirs):
        descent = torch.optim.Adam(net.parameters(), 1e-3)
        for _ in range(words.steps):
            descent.zero_grad()
            loss = torch.nn.functional.mse_loss(net(x), y)
            loss.backward()
            descent.step()
        losses.append(float(loss.detach()))
    print(f"loss after {words.steps} steps: toprung {losses[0]:.5f}, torch {losses[1]:.5f}")

    right = mine <= 1e-3 if words.precision == "tf32" else mine <= max(4 * torchs, 1e-6)
    print("gradients agree" if right else "WRONG: the gradients differ by more than rounding")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

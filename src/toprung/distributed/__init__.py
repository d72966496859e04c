"""Products of matrices that are spread over several devices, on PyTorch's own engine: DeviceMesh, DTensor and NCCL.

``matmul`` multiplies two DTensors, in panels, so that communication and products overlap. Products of DTensors, FSDP2 and tensor
parallelism that a program makes itself run on toprung's kernels after ``toprung.torch.enable()``, without this package.
``torchrun --nproc-per-node 2 -m toprung.distributed bench`` checks and times products on a host's devices.
"""

from toprung.errors import MissingExtra

try:
    import torch.distributed
except ImportError:
    raise MissingExtra("toprung.distributed needs PyTorch, which is not installed: pip install torch") from None
if not torch.distributed.is_available():
    raise MissingExtra("toprung.distributed needs a PyTorch that is built with torch.distributed: pip install torch")

from toprung.distributed.product import Receipt, last_receipt, matmul
from toprung.distributed.schedule import Schedule

__all__ = ["Receipt", "Schedule", "last_receipt", "matmul"]

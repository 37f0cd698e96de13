#include "bridge/torch/pickle_names.h"

#include <algorithm>
#include <array>

namespace bev {

namespace {

constexpr auto kNames = std::to_array<std::string_view>({
    // Containers and plain values.
    "collections.OrderedDict",
    "collections.defaultdict",
    "collections.deque",
    "argparse.Namespace",
    "types.SimpleNamespace",
    "builtins.set",
    "__builtin__.set",
    "builtins.frozenset",
    "__builtin__.frozenset",
    "builtins.bytearray",
    "__builtin__.bytearray",
    "builtins.slice",
    "builtins.complex",
    "builtins.object",
    "__builtin__.object",
    "builtins.int",
    "builtins.float",
    "builtins.str",
    "builtins.bool",
    "builtins.list",
    "builtins.dict",
    "builtins.tuple",
    "builtins.bytes",
    "__builtin__.bytes",
    "_codecs.encode",
    "copyreg._reconstructor",
    "copy_reg._reconstructor",
    "_io.BytesIO",
    "io.BytesIO",
    "pathlib.PosixPath",
    "pathlib._local.PosixPath",
    "pathlib.PurePosixPath",
    "datetime.datetime",
    "datetime.timedelta",
    "signal.Signals",
    // numpy.
    "numpy.dtype",
    "numpy.ndarray",
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
    "numpy.core.numeric._frombuffer",
    "numpy._core.numeric._frombuffer",
    // torch: tensors and their properties.
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch._tensor._rebuild_from_type_v2",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor",
    "torch.Tensor",
    "torch.nn.parameter.Parameter",
    "torch.Size",
    "torch.device",
    "torch.serialization._get_layout",
    "torch.storage.UntypedStorage",
    "torch.FloatStorage",
    "torch.DoubleStorage",
    "torch.HalfStorage",
    "torch.BFloat16Storage",
    "torch.ByteStorage",
    "torch.CharStorage",
    "torch.ShortStorage",
    "torch.IntStorage",
    "torch.LongStorage",
    "torch.BoolStorage",
    "torch.float32",
    "torch.float64",
    "torch.float16",
    "torch.bfloat16",
    "torch.uint8",
    "torch.int8",
    "torch.int16",
    "torch.int32",
    "torch.int64",
    "torch.uint16",
    "torch.uint32",
    "torch.uint64",
    "torch.bool",
    "torch.float8_e4m3fn",
    "torch.float8_e5m2",
    "torch.float8_e4m3fnuz",
    "torch.float8_e5m2fnuz",
    "torch.float8_e8m0fnu",
    "torch.strided",
    "torch.contiguous_format",
    "torch.preserve_format",
});

// Packages of which any name may occur: the metadata and plans of distributed checkpoints, and
// enumerations and settings among the arguments of a run.
constexpr auto kPackages =
    std::to_array<std::string_view>({"torch.distributed.checkpoint.", "torch.distributed._shard.",
                                     "megatron.", "transformer_engine."});

}  // namespace

bool is_known_python_name(std::string_view name) {
  if (std::ranges::find(kNames, name) != kNames.end()) return true;
  return std::ranges::any_of(kPackages, [&](auto package) { return name.starts_with(package); });
}

}  // namespace bev

"""Compile the Triton kernels of a module to machine code, which needs no GPU, and print what they take of one.

    python offline_compile.py fairseq_structattn.distributions.linear_chain.cuda 90 80

A line of JSON for each entry of the module's ``CONFIGURATIONS`` and each compute capability; for capabilities after the
first, of the largest configuration of each kernel alone, and not of kernels in float64, because compiling takes
seconds. Triton must not be interpreting.
"""

import glob
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

# Warps that a multiprocessor has room for.
WARPS = {75: 32, 80: 64, 86: 48, 89: 48, 90: 64, 100: 64}
REGISTERS, SHARED = 65536, 65536
# Bytes that addresses are multiples of: those of tensors that PyTorch allocates are.
ALIGNMENT = 16


def compile_kernel(kernel, arguments, constants, options, capability):
    """One configuration, as it is launched with tensors at aligned addresses."""
    signature = dict(arguments, **{name: "constexpr" for name in constants})
    pointers = [i for i, name in enumerate(kernel.arg_names) if arguments.get(name, "").startswith("*")]
    aligned = {(i,): [["tt.divisibility", ALIGNMENT]] for i in pointers}
    source = ASTSource(
        fn=kernel,
        signature={name: signature[name] for name in kernel.arg_names},
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
        attrs=aligned,
    )
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options=options)


def resources(ptx):
    """Registers a thread, and bytes of spills and of the stack, from the assembler's own report."""
    target = re.search(r"\.target (sm_\w+)", ptx).group(1)
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "kernel.ptx")
        with open(path, "w") as file:
            file.write(ptx)
        report = assemble(path, target, os.path.join(scratch, "kernel.cubin"))
    patterns = {
        "registers": r"Used (\d+) registers",
        "spill_stores": r"(\d+) bytes spill stores",
        "spill_loads": r"(\d+) bytes spill loads",
        "stack": r"(\d+) bytes stack frame",
    }
    return {name: int(re.search(pattern, report).group(1)) for name, pattern in patterns.items()}


def programs(registers, warps, shared, capability):
    """How many programs run on a multiprocessor at a time. A warp is allotted registers by 8 for each thread."""
    of_a_warp = -(-registers // 8) * 8 * 32
    return min(REGISTERS // of_a_warp // warps, WARPS[capability] // warps, SHARED // max(shared, 1))


def loops(cubin):
    """Numbers of machine instructions of the innermost loops that multiply and add, in the order of the code."""
    instructions, labels = [], {}
    for line in disassembled(cubin).splitlines():
        label, instruction = re.match(r"(\.L_\w+):", line), re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?);", line)
        if label:
            labels[label.group(1)] = len(instructions)
        elif instruction:
            instructions.append(instruction.group(1))
    found = []
    for end, instruction in enumerate(instructions):
        target = re.search(r"\bBRA\b.*?(\.L_\w+)", instruction)
        begin = labels.get(target.group(1), end + 1) if target else end + 1
        innermost = all(begin > other or end < last for other, last in found)
        if begin <= end and innermost and any("FFMA" in part for part in instructions[begin : end + 1]):
            found.append((begin, end))
    return [end + 1 - begin for begin, end in found]


def disassembled(cubin):
    """Machine code as text."""
    tool = os.path.join(os.path.dirname(triton.__file__), "backends/nvidia/bin/nvdisasm")
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "kernel.cubin")
        with open(path, "wb") as file:
            file.write(cubin)
        return subprocess.run([tool, "-c", path], stdout=subprocess.PIPE, check=True, text=True).stdout


def assemble(path, target, output):
    """The report of an assembler that knows the target and the version of the PTX: some releases of Triton have two."""
    for assembler in sorted(glob.glob(os.path.join(os.path.dirname(triton.__file__), "backends/nvidia/bin/ptxas*"))):
        command = [assembler, "-v", "-arch=" + target, path, "-o", output]
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if run.returncode == 0:
            return run.stdout
    raise RuntimeError(f"no assembler takes the kernel: {run.stdout}")


def main(module, first, *others):
    configurations = importlib.import_module(module).CONFIGURATIONS
    largest = {kernel: number for number, (kernel, *_) in enumerate(configurations)}
    for number, (kernel, arguments, constants, options) in enumerate(configurations):
        every = number in largest.values() and "*fp32" in arguments.values()
        for capability in (first, *others) if every else (first,):
            compiled = compile_kernel(kernel, arguments, constants, options, capability)
            used = resources(compiled.asm["ptx"])
            warps, shared = options["num_warps"], compiled.metadata.shared
            used["programs"] = programs(used["registers"], warps, shared, capability)
            if "PLAIN" in constants:
                used["loops"] = loops(compiled.asm["cubin"])
            print(json.dumps(dict(kernel=kernel.__name__, warps=warps, capability=capability, **constants, **used)))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))

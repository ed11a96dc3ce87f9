# Shared by the scripts here: what a fresh Debian machine lacks, and how steps are shown. Sourced, not run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

cuda_dir=${DSC_CUDA_DIR:-${HOME:-/root}/.cache/dsc/cuda}
# Features for cargo; set by need_llvm.
features=()
skipped=()

say() { printf '\n== %s\n' "$*"; }
warn() { printf 'warning: %s\n' "$*" >&2; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 3
}

# skip WHAT WHY: says so now, and again at the end.
skip() {
    warn "skipping $1: $2"
    skipped+=("$1: $2")
}

report_skipped() {
    local one
    for one in "${skipped[@]}"; do
        printf 'skipped  %s\n' "$one"
    done
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        sudo -n "$@"
    else
        return 1
    fi
}

apt_install() {
    command -v apt-get >/dev/null || return 1
    as_root env DEBIAN_FRONTEND=noninteractive sh -c '
        apt-get -o DPkg::Lock::Timeout=600 update -q &&
        apt-get -o DPkg::Lock::Timeout=600 install -q -y --no-install-recommends "$@"' apt "$@" >&2
}

# Rust and a C compiler: nothing works without them.
need_rust() {
    if ! command -v cargo >/dev/null && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
        PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
    fi
    command -v cargo >/dev/null || die "cargo is missing: install Rust 1.95 or newer, see https://rustup.rs"
    if ! command -v cc >/dev/null; then
        say "installing a C compiler"
        apt_install gcc libc6-dev || die "a C compiler is missing, and it could not be installed: apt-get install gcc libc6-dev"
    fi
}

# LLVM 22 for PTX; without it dsc is built without the feature `nvptx`.
need_llvm() {
    if ! command -v llvm-config-22 >/dev/null; then
        say "installing LLVM 22"
        apt_install llvm-22-dev || true
    fi
    if ! command -v llvm-config-22 >/dev/null; then
        skip "PTX" "LLVM 22 is not there and could not be installed (apt-get install llvm-22-dev)"
        features=(--no-default-features)
    fi
}

# NVIDIA's assembler, to check PTX; it needs no GPU.
need_ptxas() {
    if [ -n "${DSC_PTXAS:-}" ] || [ -x "$cuda_dir/nvidia/cu13/bin/ptxas" ] || command -v ptxas >/dev/null; then
        return
    fi
    say "installing ptxas into $cuda_dir"
    python3 -m pip --version >/dev/null 2>&1 || apt_install python3 python3-pip || true
    python3 -m pip install --quiet --target "$cuda_dir" --no-deps nvidia-cuda-nvcc==13.0.88 \
        nvidia-cuda-nvdisasm==13.5.37 nvidia-cuda-cuobjdump==13.5.37 >&2 ||
        skip "ptxas" "it is not there and could not be installed (pip install nvidia-cuda-nvcc==13.0.88)"
}

# safetensors_i32 FILE NAME: the values of an I32 tensor, separated by commas.
safetensors_i32() {
    local file=$1 name=$2 length header offsets
    length=$(od -An -t u8 -N 8 "$file" | tr -d ' ')
    header=$(head -c $((8 + length)) "$file" | tail -c "$length")
    offsets=$(grep -o "\"$name\": *{[^}]*}" <<<"$header" | sed 's/.*"data_offsets": *\[\([0-9]*\), *\([0-9]*\)\].*/\1 \2/')
    # shellcheck disable=SC2086 # two numbers
    set -- $offsets
    [ $# -eq 2 ] || die "$file has no tensor $name"
    od -An -v -t d4 -j $((8 + length + $1)) -N $(($2 - $1)) "$file" | tr -s ' \n' ',' | sed 's/^,//; s/,$//'
}

# check_runtime FILE: says what dsc-run takes, and fails where it is more than bundles are promised to need: 24 MiB, and
# of libraries the C library alone. A statically linked one needs none.
check_runtime() {
    local file=$1 limit=$((24 << 20)) bytes libraries others
    bytes=$(stat -c %s "$file")
    libraries=$(ldd "$file" 2>/dev/null | awk '{ print $1 }') || libraries=
    others=$(grep -Ev '^(linux-vdso|linux-gate|libc|libm|libdl|libpthread|librt|libgcc_s)\.so|^(/.*/)?ld-linux[^/]*$' \
        <<<"$libraries" | grep . || true)
    printf 'dsc-run, which runs bundles without the compiler: %d KiB\n' $((bytes / 1024))
    ((bytes <= limit)) || die "$file has $bytes bytes, more than $limit"
    [ -z "$others" ] || die "$file needs more than the C library: ${others//$'\n'/ }"
}

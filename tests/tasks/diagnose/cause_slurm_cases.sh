#!/bin/bash
# Cause Slurm's failures for real, on a cluster with the partitions gpu (node1-3), cpu (cpu1), spot
# (preempted and requeued) and scavenge (preempted and cancelled):
#   cause_slurm_cases.sh FOLDER 'COMMAND that kills a node, like: kill-node'
# It leaves one log for each case; their labels are in cases/caused/INDEX.tsv.
set -eu
cd "$1"
kill_node=$2
cat > train.py <<'EOF'
import time
for i in range(400):
    print(f"step {i} loss: {2.5 - i * 0.001:.4f}", flush=True)
    time.sleep(0.5)
EOF
cat > fail.py <<'EOF'
import os, time
print("rank", os.environ["SLURM_PROCID"], "on host", os.environ["SLURMD_NODENAME"], flush=True)
time.sleep(1)
if os.environ["SLURM_PROCID"] == "1":
    {}["lr"]
time.sleep(30)
EOF
cat > oom.py <<'EOF'
import time
kept = []
for i in range(60):
    print("step", i, "loss 2.0", flush=True)
    kept.append(bytearray(40 << 20))
    time.sleep(0.05)
EOF
printf '#!/bin/bash\necho "running on $SLURM_JOB_NODELIST"\nsrun python train.py\n' > train.sh
printf '#!/bin/bash\nsrun python oom.py\n' > oom.sh
printf '#!/bin/bash\nsrun -l --kill-on-bad-exit=1 python fail.py\n' > fail.sh
printf '#!/bin/bash\nsrun ./node_entry.sh\n' > missing.sh
printf 'echo hi\n' > noexec.sh && chmod 644 noexec.sh
printf '#!/bin/bash\nsrun ./noexec.sh\n' > denied.sh
submit() { name=$1; shift; sbatch -o "$name.log" -J "$name" --mem=100 "$@"; }
submit slurm-timelimit -p cpu -n1 -t 1 train.sh
submit slurm-scancel -p gpu -w node1 -n1 train.sh; sleep 4; scancel -n slurm-scancel
submit slurm-oom -p gpu -w node1 -n1 --mem=200 oom.sh
submit slurm-task-fails -p gpu -w node2,node3 -N2 -n2 fail.sh; sleep 5
submit slurm-execve -p gpu -w node1 -n1 missing.sh
submit slurm-execve-denied -p gpu -w node1 -n1 denied.sh
sbatch -p nowhere missing.sh > slurm-partition.log 2>&1 || true
submit slurm-preempt-requeue -p spot -w node1 -N1 --exclusive train.sh
submit slurm-preempt-cancel -p scavenge -w node2 -N1 --exclusive train.sh; sleep 5
sbatch -o /dev/null -p gpu -w node1 --exclusive --wrap "sleep 3"
sbatch -o /dev/null -p gpu -w node2 --exclusive --wrap "sleep 3"; sleep 20
submit slurm-node-fail -p gpu -w node2,node3 -N2 -n2 train.sh; sleep 3; $kill_node node3
sleep 75

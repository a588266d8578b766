"""`overland chaos`: trials that kill and stop the processes of small runs, and compare the results."""

import sys, torch
from dataclasses import replace
from certspec.kernels import triton_rows as tr
from certspec.kernels.rule_table import rule_table
from certspec.rules import default_rules
from certspec.bench.synthetic import peaked_rows
rows=int(sys.argv[1]); V=151936
table=rule_table(tuple(default_rules()))
par=torch.from_numpy(table.parameters.copy()).cuda()
t,d=peaked_rows(rows,V,dtype=torch.bfloat16,device='cuda',seed=1)
w,q,b,r=map(int,sys.argv[2:6])
plan=replace(tr.plan_for(rows,V,2,table.num_top),combine_warps=w,quads=q,batch=b,combine_registers=r)
out=tr.allocate(rows,V,len(table.rules),table.num_top,plan,'cuda')
for _ in range(6): tr.launch(t,d,par,V,table.num_top,plan,out)
torch.cuda.synchronize()

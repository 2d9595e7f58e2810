import sys,os,json,statistics,dataclasses
from concurrent.futures import ProcessPoolExecutor
import multiprocessing as mp
sys.path.insert(0, os.getcwd())
import torch, triton
from functools import partial
from certspec.bench import kernels as bk
from certspec.bench.synthetic import peaked_rows
from certspec.kernels import triton_rows as tr
from certspec.kernels.rule_table import rule_table
from certspec.rules import default_rules
V=151936
table=rule_table(tuple(default_rules()))
par=torch.from_numpy(table.parameters.copy()).cuda()
def setup(rows, n=None):
    total=4*rows*V
    return [peaked_rows(rows,V,dtype=torch.bfloat16,device="cuda",seed=s) for s in range(n or max(2,-(-bk.INPUT_BYTES//total)))]
def P(**k): return dataclasses.replace(tr.Plan(combine_warps=8,judge_warps=4,batch=32),**k)
FEW={
 "base":P(), "early":P(early=True), "early t8g2":P(early=True,tiles=8,groups=2,unroll=True), "early t8g2 nounroll":P(early=True,tiles=8,groups=2),
 "early t16g1":P(early=True,tiles=16,groups=1,unroll=True), "early t4g4u":P(early=True,unroll=True),"early l64":P(early=True,lanes=64,warps=2),
 "early l64 t8g2":P(early=True,lanes=64,warps=2,tiles=8,groups=2),
 "early b16":P(early=True,batch=16), "early l64 t8g1":P(early=True,lanes=128,warps=4,tiles=8,groups=1,unroll=True),
 "fused r0":P(fused=True,batch=8), "fused r128":P(fused=True,batch=8,combine_registers=128), "fused w8":P(fused=True,batch=16,warps=8,lanes=256,tiles=4,groups=2),
}
MANY={
 "base":P(combine_registers=128,batch=16,judge_warps=1), "early":P(combine_registers=128,batch=16,judge_warps=4,early=True),
 "early w4":P(combine_warps=4,batch=8,judge_warps=4,early=True), "early w4 r128":P(combine_warps=4,batch=8,judge_warps=4,early=True,combine_registers=128),
 "early w4 r128 g8":P(combine_warps=4,batch=4,judge_warps=4,early=True,combine_registers=128,groups=8),
 "fused r128":P(fused=True,batch=8,combine_registers=128), "fused r128 b4":P(fused=True,batch=4,combine_registers=128),
 "fused r168":P(fused=True,batch=8,combine_registers=168), "fused t2 r96":P(fused=True,batch=4,combine_registers=96,tiles=2,groups=8),
 "fused g8 r128":P(fused=True,batch=4,combine_registers=128,groups=8), "fused w2 l64":P(fused=True,batch=4,combine_registers=128,warps=2,lanes=64),
 "fused t2g16":P(fused=True,batch=4,combine_registers=96,tiles=2,groups=16),
}
STREAM={
 "t4g4":P(), "t4g8":P(groups=8), "t4g16":P(groups=16), "t2g8":P(tiles=2,groups=8), "t2g16":P(tiles=2,groups=16), "t8g2":P(tiles=8,groups=2), "t8g4":P(tiles=8,groups=4),
 "l64t4g8":P(lanes=64,warps=2,groups=8), "l64t4g4":P(lanes=64,warps=2), "l256t4g4":P(lanes=256,warps=8), "l256t2g8":P(lanes=256,warps=8,tiles=2,groups=8), "l32t4g8":P(lanes=32,warps=1,groups=8),"t1g16":P(tiles=1,groups=16)}
def warm(job):
    kind,plan=job
    try:
        pairs=setup(2,1); out=tr.allocate(2,V,8,10,plan,"cuda")
        if kind=="s": tr._stream(*pairs[0],out,0,2,V,plan)
        else: tr.launch(*pairs[0],par,V,10,plan,out)
        torch.cuda.synchronize()
    except Exception as e: return repr(e)[:300]
def med(f): return round(statistics.median(f),2)
def main():
    jobs=[("l",p) for p in [*FEW.values(),*MANY.values()]]+[("s",p) for p in STREAM.values()]
    with ProcessPoolExecutor(14,mp_context=mp.get_context("spawn")) as ex: errs=list(ex.map(warm,jobs))
    names=[*FEW,*MANY,*STREAM]
    print("errors",{n:e for n,e in zip(names,errs) if e})
    bw=bk.copy_bandwidth(); print("copy",bw/1e9,torch.cuda.get_device_name())
    ref=None
    for rows in (8,64,1024):
        pairs=setup(rows); total=4*rows*V
        group=FEW if rows<100 else MANY
        res={}
        for n,p in group.items():
            try:
                out=tr.allocate(rows,V,8,10,p,"cuda")
                res[n]=med(bk.graph_times([partial(tr.launch,*q,par,V,10,p,out) for q in pairs],5))
                tr.launch(*pairs[0],par,V,10,p,out); torch.cuda.synchronize()
                if n=="base": base=out
                else:
                    d=[k for k in("verdict","ids","path") if not torch.equal(getattr(base,k),getattr(out,k))]
                    e=float((base.certificate-out.certificate).abs().nan_to_num(0,0,0).max()),float((base.scalars-out.scalars).abs().max())
                    if d or max(e)>1e-6: res[n+" DIFF"]=(d,e)
            except Exception as e: res[n]=repr(e)[:150]
        print(rows,"floor",round(total/bw*1e6,2),json.dumps(res),flush=True)
        res={}
        for n,p in STREAM.items():
            if rows==64: continue
            try:
                out=tr.allocate(rows,V,8,10,p,"cuda")
                res[n]=med(bk.graph_times([partial(tr._stream,*q,out,0,rows,V,p) for q in pairs],5))
            except Exception as e: res[n]=repr(e)[:150]
        if rows==1024:
            x=pairs[0][0]; res["torch sum read"]=med(bk.graph_times([partial(torch.amax,q[i].view(torch.int32),1) for q in pairs for i in (0,1)],5))
        print(rows,"stream",json.dumps(res),flush=True)
if __name__=="__main__": main()

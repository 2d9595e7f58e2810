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
def P(**k): return dataclasses.replace(tr.Plan(combine_warps=8,batch=32),**k)
FEW={
 "base":P(), "ahead16":P(combine_warps=16,batch=64), "b64":P(batch=64), "w4":P(combine_warps=4,batch=16), "w4b32":P(combine_warps=4,batch=32),
 "r12":P(ranks=12), "r12w4":P(ranks=12,combine_warps=4), "r12w16":P(ranks=12,combine_warps=16), "r10":P(ranks=10), "early":P(early=True), "early r12":P(early=True,ranks=12), "early w16 b64":P(early=True,combine_warps=16,batch=64),
 "r12 t8g1":P(ranks=12,tiles=8,groups=1,unroll=True), "r12 t4g2u":P(ranks=12,tiles=4,groups=2,unroll=True), "r12 l64":P(ranks=12,lanes=64,warps=2), "r12 l256":P(ranks=12,lanes=256,warps=8,groups=2),
 "fused w8":P(fused=True,batch=32,warps=8,lanes=256,tiles=4,groups=2,ranks=12),
}
C=dict(w4r128=dict(combine_warps=4,batch=8,combine_registers=128),w2r168=dict(combine_warps=2,batch=4,combine_registers=168),w2r128=dict(combine_warps=2,batch=4,combine_registers=128),
 w1r255=dict(combine_warps=1,batch=2,combine_registers=255),w2r255=dict(combine_warps=2,batch=8,combine_registers=255))
MANY={
 "base":P(combine_registers=128,batch=16), "w4":P(combine_warps=4,batch=8),
 **{n:P(**k) for n,k in C.items()}, **{"early "+n:P(early=True,**k) for n,k in C.items()},
 "early w4r128 r12":P(early=True,ranks=12,**C["w4r128"]),"early w4r128 g8":P(early=True,groups=8,**C["w4r128"]),"early w4r96":P(early=True,combine_warps=4,batch=4,combine_registers=96),
 **{f"blk{b} c{int(c)} {n}":P(blocks=b,chained=c,**C[n]) for b,c,n in ((4,False,"w4r128"),(4,True,"w4r128"),(8,True,"w4r128"),(4,True,"w2r168"),(8,True,"w2r168"),(4,True,"w1r255"),(2,True,"w4r128"))},
 "fused r128":P(fused=True,batch=8,combine_registers=128), "fused r96":P(fused=True,batch=4,combine_registers=96),"fused r64":P(fused=True,batch=4,combine_registers=64,tiles=2,groups=8),
}
STREAM={}
def warm(job):
    kind,plan=job
    try:
        pairs=setup(2,1); out=tr.allocate(2,V,8,10,plan,"cuda")
        if kind=="s": tr._stream(*pairs[0],out,0,2,V,plan)
        else: tr.launch(*pairs[0],par,V,10,dataclasses.replace(plan,blocks=1),out); tr._stream(*pairs[0],out,0,2,V,plan)
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
                times=bk.graph_times([partial(tr.launch,*q,par,V,10,p,out) for q in pairs],5); res[n]=(med(times),round(min(times),2))
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

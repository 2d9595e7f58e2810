import sys, json, time, statistics, multiprocessing as mp
from dataclasses import replace
def plans():
    from certspec.kernels import triton_rows as tr
    base=tr.plan_for(1024,151936,2,11); out=[]
    def p(w,quads,batch,regs,**k): return replace(base,combine_warps=w,quads=quads,batch=batch,combine_registers=regs,**k)
    for w,q,b,r in ((1,2,4,0),(1,2,2,0),(1,4,4,0),(1,2,4,168),(1,1,4,0),(1,2,8,0),(2,2,4,128),(2,4,8,128),(2,4,8,168),(2,8,8,0),(2,4,4,128),(4,8,8,128),(4,8,16,128),(4,4,8,64),(4,4,8,96)):
        out.append((1024,p(w,q,b,r)))
    for w,q,b,r in ((8,16,32,0),(8,8,32,0),(4,16,16,0),(4,8,16,0),(4,8,32,0),(2,8,16,0),(2,4,8,0),(1,4,4,0),(8,16,16,0),(4,4,16,0)):
        out.append((8,p(w,q,b,r)))
    for w,q,b,r in ((8,16,32,0),(4,8,16,0),(4,8,32,0),(2,8,16,0),(2,4,8,0)):
        out.append((64,p(w,q,b,r)))
    return out
def go(i):
    import torch
    from certspec.kernels import triton_rows as tr
    from certspec.kernels.rule_table import rule_table
    from certspec.rules import default_rules
    rows,plan=plans()[i]
    try:
        table=rule_table(tuple(default_rules())); par=torch.from_numpy(table.parameters.copy()).cuda()
        t=torch.randn(rows,151936,device='cuda').bfloat16(); 
        tr.launch(t,t,par,151936,table.num_top,plan); torch.cuda.synchronize()
        return None
    except Exception as e: return repr(e)[:300]
if __name__=='__main__':
    P=plans(); T=time.time()
    with mp.get_context('spawn').Pool(10) as pool: bad=pool.map(go,range(len(P)),chunksize=1)
    print('compiled',time.time()-T,[b for b in bad if b],flush=True)
    import torch
    from certspec.bench.kernels import measure, copy_bandwidth, graph_times
    from certspec.kernels import triton_rows as tr
    bw=copy_bandwidth(); print('copy',bw/1e9,flush=True)
    # stream alone
    res=[]
    for i,(rows,plan) in enumerate(P):
        if bad[i]: continue
        r=measure(rows,151936,bw,plan,baselines=False)
        o=r['ours']; print(rows,'w',plan.combine_warps,'q',plan.quads,'b',plan.batch,'r',plan.combine_registers,'g',plan.groups,plan.parts,'us %.2f'%o['median_us'],'share %.3f'%(r['floor_us']/o['median_us']),'und',r['undecided_rows'],flush=True)
